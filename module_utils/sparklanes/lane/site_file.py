# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A site's file of a lane: which one it is, and a value set in its text, so that comments, order and spelling of all else stay.

Where a value goes is taken from the places that the YAML parser gives each node; afterwards the new text is parsed and must say what the old one
did, with those values and nothing else changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import yaml
except (
    ImportError
):  # what is tested as if it were carried to a Spark has to import without it; the controller's Ansible brings it
    yaml = None  # type: ignore[assignment]

EXTENSIONS = ("", ".yml", ".yaml", ".json")
_BARE = re.compile(r"[A-Za-z_][\w.-]*|/[\w./-]+|--[\w-]+", re.ASCII)


class CannotEdit(ValueError):
    """Why the text stays as it is, in words for a person."""


@dataclass(frozen=True)
class Setting:
    """A value of a lane: the variable, the keys in it, the value as text, and a comment that says where it is from."""

    variable: str
    keys: tuple[str, ...]
    value: str
    comment: str

    @property
    def path(self) -> str:
        return ".".join((self.variable, *self.keys))


# --- which file ---------------------------------------------------------------------------------------------------


def lane_files(folder: Path, lane: str) -> list[Path]:
    """The files of a lane that Ansible reads in a folder of group_vars, the last wins: a folder of that name, else the first that there is."""
    for extension in EXTENSIONS:
        path = folder / f"lane_{lane}{extension}"
        if path.is_dir():
            found = (file for file in sorted(path.rglob("*")) if file.is_file() and file.suffix in EXTENSIONS)
            return [
                file
                for file in found
                if not any(part.startswith(".") for part in file.relative_to(path).parts) and not file.name.endswith("~")
            ]
        if path.exists():
            return [path]
    return []


def lane_file(folder: Path, lane: str, variables: Sequence[str]) -> Path:
    """The file in which these variables are to be set: the one that has the first of them, else the lane's, else a new one."""
    files = lane_files(folder, lane)
    for file in reversed(files):
        if any(re.search(rf"^{re.escape(name)}(?:_site)?\s*:", read(file), re.MULTILINE) for name in variables):
            return file
    if (folder / f"lane_{lane}").is_dir():
        return folder / f"lane_{lane}" / "pins.yml"
    return files[0] if files else folder / f"lane_{lane}.yml"


def read(path: Path) -> str:
    """The text of a file, empty where it is not there. Line ends stay as they are."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise CannotEdit(f"{path} can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CannotEdit(f"{path} is no text of UTF-8") from error
    if text.startswith("$ANSIBLE_VAULT;"):
        raise CannotEdit(f"{path} is encrypted as a whole; put the secrets into a file of their own")
    if path.suffix == ".json":
        raise CannotEdit(f"{path} is JSON, which holds no comment that says where a value is from; rename it to .yml")
    return text


# --- what it says -------------------------------------------------------------------------------------------------


def parse(text: str) -> yaml.MappingNode | None:
    """The nodes of a file of variables; None where it says nothing. CannotEdit where it is no such file, or has a key twice."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise CannotEdit(f"it is no YAML: {where}{getattr(error, 'problem', None) or error}") from error
    if root is None or (isinstance(root, yaml.ScalarNode) and _null(root)):
        return None
    if not isinstance(root, yaml.MappingNode):
        raise CannotEdit("it holds no variables, but a list or a text")
    if root.flow_style:
        raise CannotEdit("it holds its variables in braces, where no line can be added; write one a line")
    for node in _mappings(root, set()):
        seen: dict[str, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and name in seen:
                raise CannotEdit(
                    f"it has {name} twice, on lines {seen[name]} and {line}, and the second hides the first. Keep one"
                )
            seen[name] = line
    return root


def _mappings(node: yaml.Node, seen: set[int]) -> Iterator[yaml.MappingNode]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        yield node
        for _, value in node.value:
            yield from _mappings(value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _mappings(value, seen)


def plain(node: yaml.Node | None) -> Any:
    """What a node says, as data that can be compared: texts as they are, with their tag where it is none of the usual."""
    if isinstance(node, yaml.MappingNode):
        return {str(plain(key)): plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [plain(value) for value in node.value]
    if node is None or _null(node):
        return None
    usual = node.tag.startswith("tag:yaml.org,2002:")
    return str(node.value) if usual else f"{node.tag} {node.value}"


def _null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _find(node: yaml.MappingNode | None, name: str) -> tuple[yaml.Node, yaml.Node] | None:
    """Key and value of a name."""
    return next(((key, value) for key, value in (node.value if node else []) if key.value == name), None)


def variable_of(text: str, setting: Setting) -> str:
    """The name under which a file sets this: the site's layer, or the lane's own where the file is the lane's and holds the value."""
    root = parse(text)
    own = _find(root, setting.variable)
    if own and not _find(root, f"{setting.variable}_site") and isinstance(own[1], yaml.MappingNode):
        there = plain(own[1])
        for key in setting.keys[:-1]:
            there = there.get(key) if isinstance(there, dict) else None
        if isinstance(there, dict) and setting.keys[-1] in there:
            return setting.variable
    return f"{setting.variable}_site"


# --- setting values -----------------------------------------------------------------------------------------------


def edited(text: str, settings: Sequence[Setting], head: str = "") -> str:
    """The text with these values in it, each with its comment in the line above. head: how a file begins that said nothing."""
    said_before = plain(parse(text)) or {}
    made = text
    for setting in settings:
        made = _set(made, setting, head)
    expected = said_before
    for setting in settings:
        expected = _with(expected, (variable_of(text, setting), *setting.keys), setting.value)
    try:
        said_now = plain(parse(made))
    except CannotEdit as error:
        raise CannotEdit(f"{error}, once the pins are in it") from error
    if said_now != expected:
        raise CannotEdit("its form is one that can't be changed here without changing something else")
    return made


def _with(data: Any, keys: Sequence[str], value: str) -> Any:
    """The data with a value set: in a list of things with a target, in that of the target."""
    if not keys:
        return value
    if isinstance(data, list):
        places = [place for place, item in enumerate(data) if isinstance(item, dict) and item.get("target") == keys[0]]
        return [_with(item, keys[1:], value) if places and place == places[0] else item for place, item in enumerate(data)]
    return {**(data if isinstance(data, dict) else {}), keys[0]: _with((data or {}).get(keys[0]), keys[1:], value)}


def _set(text: str, setting: Setting, head: str) -> str:
    root = parse(text)
    name = variable_of(text, setting)
    found = _find(root, name)
    newline = "\r\n" if "\r\n" in text else "\n"
    if not found:
        start = text if text.strip() else head
        start += "" if not start or start.endswith("\n") else newline
        lines = _block([name, *setting.keys], setting, 0)
        return start + "".join(f"{line}{newline}" for line in lines)
    assert root is not None
    return _descend(text, found, setting.keys, setting, found[0], newline)


def _descend(
    text: str, pair: tuple[yaml.Node, yaml.Node], keys: Sequence[str], setting: Setting, block: yaml.Node, newline: str
) -> str:
    """Set the value below a key. block: the innermost key that stands at the beginning of a line of its own, above which a comment may go."""
    key, node = pair
    start = node.start_mark.index
    if start < key.end_mark.index or text[start : start + 1] in ("&", "*", "!"):
        raise CannotEdit(f"line {key.start_mark.line + 1}: {key.value} is an alias, an anchor or has a tag")
    if not keys or _null(node):
        if isinstance(node, yaml.ScalarNode) and node.style in (None, "'", '"'):
            value = _quoted(setting.value)
            value = _flow(keys, value) if keys else value
            gap = "" if text[start - 1 : start].isspace() else " "
            made = text[:start] + gap + value + text[node.end_mark.index :]
            return _commented(made, block, setting, newline)
        raise CannotEdit(f"line {key.start_mark.line + 1}: {key.value} holds no plain value")
    if isinstance(node, yaml.SequenceNode):
        items = [item for item in node.value if isinstance(item, yaml.MappingNode) and plain(item).get("target") == keys[0]]
        if len(items) != 1:
            raise CannotEdit(
                f"line {key.start_mark.line + 1}: the list {key.value} has {len(items)} entries with target {keys[0]}; expected one"
            )
        inner = _find(items[0], keys[1])
        if len(keys) != 2 or not inner:
            raise CannotEdit(
                f"line {items[0].start_mark.line + 1}: the entry with target {keys[0]} has no {keys[-1]}; write one, empty"
            )
        return _descend(text, inner, keys[2:], setting, _line_key(text, inner[0]) or block, newline)
    if not isinstance(node, yaml.MappingNode):
        raise CannotEdit(f"line {key.start_mark.line + 1}: {key.value} is a text (a template?), where a mapping was expected")
    inner = _find(node, keys[0])
    if inner:
        return _descend(text, inner, keys[1:], setting, _line_key(text, inner[0]) or block, newline)
    if node.flow_style:
        more = f"{_key(keys[0])}: {_flow(keys[1:], _quoted(setting.value))}{', ' if node.value else ''}"
        return _commented(text[: start + 1] + more + text[start + 1 :], block, setting, newline)
    place = text.find("\n", key.end_mark.index) + 1
    column = node.value[0][0].start_mark.column
    lines = "".join(f"{line}{newline}" for line in _block(keys, setting, column))
    return text[:place] + lines + text[place:]


def _line_key(text: str, key: yaml.Node) -> yaml.Node | None:
    """The key, where nothing but blanks stands before it on its line."""
    begin = text.rfind("\n", 0, key.start_mark.index) + 1
    return key if not text[begin : key.start_mark.index].strip() else None


def _commented(text: str, block: yaml.Node, setting: Setting, newline: str) -> str:
    """The text with the comment above that key's line, instead of the one that an earlier pin left there."""
    begin = text.rfind("\n", 0, block.start_mark.index) + 1
    above = begin
    while above:
        line = text.rfind("\n", 0, above - 1) + 1
        if not text[line:above].lstrip().startswith("#"):
            break
        above = line
    mine = f"# Pinned {setting.path} "
    kept = "".join(line for line in text[above:begin].splitlines(keepends=True) if not line.lstrip().startswith(mine))
    return f"{text[:above]}{kept}{' ' * block.start_mark.column}{_comment(setting)}{newline}{text[begin:]}"


def _comment(setting: Setting) -> str:
    return f"# Pinned {setting.path} {' '.join(setting.comment.split())}"


def _block(keys: Sequence[str], setting: Setting, column: int) -> list[str]:
    """The keys as lines below each other, the comment above the last."""
    lines = [f"{' ' * (column + 2 * place)}{_key(key)}:" for place, key in enumerate(keys)]
    lines[-1] += f" {_quoted(setting.value)}"
    lines.insert(len(lines) - 1, f"{' ' * (column + 2 * (len(keys) - 1))}{_comment(setting)}")
    return lines


def _flow(keys: Sequence[str], value: str) -> str:
    return f"{{{_key(keys[0])}: {_flow(keys[1:], value)}}}" if keys else value


def _key(text: str) -> str:
    return text if _BARE.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def value_of(text: str, name: str) -> tuple[Any, ...] | None:
    """What a file says of a variable, as one thing; None where it says nothing, and nothing where that can't be told (a vaulted value)."""
    if _find(parse(text), name) is None:
        return None
    try:
        return (yaml.safe_load(text)[name],)
    except yaml.YAMLError:
        return ()


def names(path: str, variable: str) -> bool:
    """Whether a file names a variable, for who looks for the one that has it."""
    try:
        return bool(re.search(rf"^\s*{re.escape(variable)}\s*:", Path(path).read_text(encoding="utf-8"), re.MULTILINE))
    except (OSError, ValueError):
        return False
