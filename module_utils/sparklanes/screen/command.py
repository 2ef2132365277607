# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The next command for a person: with the inventory, the limit and the variables of this run, so that it does what it says when pasted."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.secrets import secret_name, secret_value

# A decision of one run (launch_restart, bank_accept, prune_confirm) is no part of the next: variables named after a verb stay behind.
VERBS = (
    "archive_",
    "bank_",
    "break_lock",
    "launch_",
    "new_lane",
    "pin_",
    "preflight_",
    "prune_",
    "reboot_",
    "recover_",
    "render_",
    "stop_",
)

# A verb as texts name it, ours and those of modules on a Spark: `playbooks/stop.yml -l pair_a`, `ansible-playbook site.yml`, `Run site.yml`.
_NAMED = re.compile(
    r"(?:ansible-playbook )?(?<![\w/.-])(?P<playbook>playbooks/[a-z_]+\.yml|(?<=ansible-playbook )site\.yml|(?<=[Rr]un )site\.yml)"
    r"(?P<more>(?: -[elK](?: (?:'[^']*'|\"[^\"]*\"|[\w=:@/.,{}-]*[\w}]))?(?![\w]))*)"
)


def completed(text: str, typed: Mapping[str, Any], default_inventory: Sequence[str] = (), folder: str = "") -> str:
    """The text with each verb that it names as a whole command: what was typed for this run holds for the next one too."""

    def whole(found: re.Match[str]) -> str:
        limit = ""
        extra: dict[str, Any] = {}
        words = shlex.split(found["more"])
        for flag, value in itertools.pairwise(words):
            if flag == "-l":
                limit = value
            elif flag == "-e":
                extra |= variables(value)
        asked = {
            **typed,
            "become_ask_pass": typed.get("become_ask_pass") or "-K" in words,
            "subset": limit or typed.get("subset"),
        }
        return command(found["playbook"], asked, default_inventory, extra=extra, folder=folder)

    return _NAMED.sub(whole, text)


def command(
    playbook: str,
    typed: Mapping[str, Any],
    default_inventory: Sequence[str] = (),
    limit: str = "",
    extra: Mapping[str, Any] | None = None,
    folder: str = "",
) -> str:
    """`ansible-playbook …` on one line. No secret is ever in it, nor how a vault is opened.

    typed: Ansible's command line (`context.CLIARGS`). default_inventory: the sources that need no -i. limit: for -l, where the run
    had none. extra: variables that the next command adds to those of the run, or sets otherwise. folder: where a person types.
    """
    sources = [str(source) for source in typed.get("inventory") or ()]
    words = ["ansible-playbook"]
    if sources != [str(source) for source in default_inventory]:
        words += [word for source in sources for word in ("-i", short(source, folder))]
    words.append(playbook)
    if typed.get("become_ask_pass"):
        words.append("-K")
    chosen = str(typed.get("subset") or limit)
    words += ["-l", chosen] if chosen else []
    wanted = dict(extra or {})
    for given in repeated([str(raw) for raw in typed.get("extra_vars") or ()], set(wanted)):
        words += ["-e", given]
    for name, value in wanted.items():
        words += ["-e", assignment(name, value)]
    return " ".join(shlex.quote(word) for word in words)


def short(source: str, folder: str) -> str:
    """A path as it would be typed in `folder`; a list of hosts (`a,b,`) stays what it is."""
    if "," in source or not folder:
        return source
    return os.path.relpath(source, folder) if f"{source}/".startswith(f"{folder.rstrip('/')}/") else source


def repeated(raws: Iterable[str], replaced: set[str]) -> list[str]:
    """The variables of -e that belong to the next command too, each ready for an -e of its own."""
    found = []
    for raw in raws:
        if raw.startswith("@"):
            found.append(raw)
            continue
        found += [
            assignment(name, value)
            for name, value in variables(raw).items()
            if name not in replaced and not name.startswith(VERBS) and not secret(name, value)
        ]
    return found


def variables(raw: str) -> dict[str, Any]:
    """What one -e sets: `a=1 b=2`, JSON or YAML. What nobody can read sets nothing."""
    if raw.lstrip()[:1] in ("{", "["):
        import yaml  # here, not above: what Ansible ships to a Spark has to import without it

        try:
            data = yaml.safe_load(raw)
        except yaml.YAMLError:
            return {}
        return {str(name): value for name, value in data.items()} if isinstance(data, dict) else {}
    try:
        words = shlex.split(raw)
    except ValueError:
        return {}
    return {name: value for name, is_, value in (word.partition("=") for word in words) if is_}


def secret(name: str, value: Any) -> bool:
    """Whether a variable is a secret or has one anywhere in it."""
    if secret_name(name):
        return True
    if isinstance(value, Mapping):
        return any(secret(str(key), below) for key, below in value.items())
    if isinstance(value, list):
        return any(secret("", one) for one in value)
    return isinstance(value, str) and secret_value(value)


def assignment(name: str, value: Any) -> str:
    """`name=value` where that says the same, else JSON: `name=1` is a text to Ansible, and our lanes read it as a number."""
    if isinstance(value, str) and value and not set(value) & set(" \t\n'\"\\{}="):
        return f"{name}={value}"
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    return json.dumps({name: value}, ensure_ascii=False)
