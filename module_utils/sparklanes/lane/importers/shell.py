# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The text of commands as words. Nothing is run or expanded by a shell: variables that the text itself sets are filled in as data, all
others stay as they are, and what would run something is refused by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ansible.module_utils.sparklanes.lane.importers.source import LARGEST, Refused, word_set

MOST_WORDS = 5000
# Words that begin more than one command.
KEYWORDS = word_set("if then else elif fi for while until do done case esac function select { } [[ (( ! coproc")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(\[[@*]\])|:?-([^{}$`\"'\\]*))?\}")
_OPERATORS = (
    "&&",
    "||",
    ";;",
    ";",
    "|&",
    "|",
    "&>>",
    "&>",
    "&",
    "<<<",
    "<<",
    "<(",
    ">(",
    ">>",
    ">&",
    "<&",
    ">|",
    "<",
    ">",
    "(",
    ")",
)


@dataclass
class Statement:
    """One simple command: its words, the variables that stand before it, and what follows it in the line."""

    line: int
    words: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    redirections: list[str] = field(default_factory=list)
    piped: bool = False  # its output goes to the next one


class _Reader:
    def __init__(self, text: str, known: Mapping[str, list[str]], first_line: int) -> None:
        self.text, self.place = re.sub(r"\\[ \t]+\n", "\\\n", text), 0
        self.known = dict(known)
        self.first_line = first_line
        self.made = 0  # characters that variables brought: one may hold itself twice, and again

    @property
    def line(self) -> int:
        return self.first_line + self.text.count("\n", 0, self.place)

    def refuse(self, what: str, instead: str) -> Refused:
        return Refused(f"line {self.line}: {what}. {instead}")

    def peek(self, count: int = 1) -> str:
        return self.text[self.place : self.place + count]

    def take(self, count: int = 1) -> str:
        taken = self.peek(count)
        self.place += count
        return taken

    def blanks(self) -> None:
        while self.peek() in (" ", "\t") or self.peek(2) == "\\\n":
            self.take(2 if self.peek() == "\\" else 1)

    def operator(self) -> str:
        return next((one for one in _OPERATORS if self.text.startswith(one, self.place)), "")

    def value(self, name: str) -> list[str]:
        self.made += sum(map(len, self.known[name])) + 1
        if self.made > LARGEST:
            raise self.refuse(f"variables make it longer than {LARGEST // 1024} KiB", "Write the command out")
        return self.known[name]

    def variable(self) -> list[str]:
        """What `$…` stands for here: the value that the text gave it, else its own text."""
        if self.peek(2) == "$(" or self.peek() == "`":
            shown = "`…`" if self.peek() == "`" else "$((…))" if self.peek(3) == "$((" else "$(…)"
            raise self.refuse(f"{shown} would run a command to make a word", "Write what it stands for")
        braced = _BRACED.match(self.text, self.place)
        plain = _NAME.match(self.text, self.place + 1)
        if braced:
            self.place = braced.end()
            if braced[1] in self.known:
                return self.value(braced[1])
            return [braced[3]] if braced[3] is not None else [braced[0]]
        if self.peek(2) == "${":
            end = self.text.find("}", self.place)
            return [self.take(end + 1 - self.place if end > 0 else 2)]
        if plain:
            self.place = plain.end()
            return self.value(plain[0]) if plain[0] in self.known else [f"${plain[0]}"]
        return [self.take(2) if re.fullmatch(r"\$[0-9@*#?$!-]", self.peek(2)) else self.take()]

    def quoted(self, word: list[str]) -> None:
        """The rest of a "…" text. Words of an array that stands in it become words."""
        self.take()
        while self.peek() != '"':
            if not self.peek():
                raise self.refuse('a " has no end', "Add the missing quote")
            if self.peek() == "\\" and self.peek(2)[1:] in ('"', "\\", "$", "`", "\n"):
                escaped = self.take(2)[1]
                word[-1] += "" if escaped == "\n" else escaped
            elif self.peek() in ("$", "`"):
                star = _BRACED.match(self.text, self.place)
                values = self.variable()
                first, *more = [" ".join(values)] if star and star[2] == "[*]" else values or [""]
                word[-1] += first
                word += more
            else:
                word[-1] += self.take()
        self.take()

    def word(self) -> list[str]:
        """One word of the text; several where an unquoted variable has several, none where it is empty."""
        made, some = [""], False
        while self.peek() and self.peek() not in " \t\n" and not self.operator():
            if self.peek() == "\\":
                escaped = self.take(2)[1:]
                made[-1] += "" if escaped == "\n" else escaped
                some = some or escaped != "\n"
            elif self.peek() == "'" or self.peek(2) == "$'":
                if self.peek() == "$":
                    raise self.refuse("$'…' is a text with escapes of a shell", "Write it in plain quotes")
                end = self.text.find("'", self.place + 1)
                if end < 0:
                    raise self.refuse("a ' has no end", "Add the missing quote")
                made[-1] += self.text[self.place + 1 : end]
                self.place, some = end + 1, True
            elif self.peek() == '"' or self.peek(2) == '$"':
                self.take(int(self.peek() == "$"))
                self.quoted(made)
                some = True
            elif self.peek() in ("$", "`"):
                pieces = [piece for value in self.variable() for piece in value.split()]
                some = some or bool(pieces)
                first, *more = pieces or [""]
                made[-1] += first
                made += more
            else:
                made[-1] += self.take()
                some = True
        return made if some else []

    def array(self) -> list[str]:
        """The words of `NAME=(…)`, behind the bracket."""
        made: list[str] = []
        while True:
            while (self.peek() and self.peek() in " \t\n") or self.peek(2) == "\\\n":
                self.take()
            if self.peek() == "#":
                self.comment()
            elif self.peek() == ")":
                self.take()
                return made
            elif not self.peek() or self.operator():
                raise self.refuse("a list of words has no end", "Add the missing )")
            else:
                made += self.word()

    def comment(self) -> None:
        end = self.text.find("\n", self.place)
        self.place = len(self.text) if end < 0 else end

    def redirection(self, statement: Statement, operator: str) -> None:
        if operator in ("<<", "<<<", "<", "<(", ">(", "<&"):
            raise self.refuse(
                f"{operator} gives a command something to read", "Leave the one docker run or vllm serve in the file"
            )
        if statement.words and statement.words[-1].isdigit() and self.text[self.place - 1 : self.place].isdigit():
            statement.words.pop()  # 2> is a number of the redirection
        self.take(len(operator))
        self.blanks()
        statement.redirections.append(f"{operator}{' '.join(self.word())}")

    def statements(self) -> list[Statement]:
        made: list[Statement] = []
        current = Statement(0)
        count = 0

        def end(piped: bool = False) -> None:
            nonlocal current
            current.piped = piped
            if current.words or current.env or current.redirections:
                made.append(current)
            if not current.words:
                # Alone in its command, an assignment holds for what follows.
                self.known.update({name: [value] for name, value in current.env.items()})
            elif current.words[0] in ("export", "declare", "readonly", "local"):
                pairs = [word.partition("=") for word in current.words[1:] if _ASSIGNED.match(word)]
                self.known.update({name: [value] for name, _, value in pairs})
            current = Statement(0)

        while self.place < len(self.text):
            self.blanks()
            operator = self.operator()
            if not self.peek():
                break
            if self.peek() == "\n" or operator in (";", "&&", "||", "&", ";;"):
                self.take(max(1, len(operator)))
                end()
            elif operator in ("|", "|&"):
                self.take(len(operator))
                end(piped=True)
            elif operator in ("(", ")"):
                raise self.refuse(
                    f"{operator} is of a shell's own language", "Leave the one docker run or vllm serve in the file"
                )
            elif operator:
                self.redirection(current, operator)
            elif self.peek() == "#":
                self.comment()
            else:
                current.line = current.line or self.line
                count += 1
                if count > MOST_WORDS:
                    raise self.refuse(f"more than {MOST_WORDS} words", "Leave the one docker run or vllm serve in the file")
                assigned = None if current.words else _ASSIGNED.match(self.text, self.place)
                if assigned and self.text.startswith("(", assigned.end()):
                    self.place = assigned.end() + 1
                    self.known[assigned[1]] = [*(self.known.get(assigned[1], []) if assigned[2] else []), *self.array()]
                elif assigned:
                    self.place = assigned.end()
                    value = " ".join(self.word())
                    before = " ".join(self.known.get(assigned[1], [])) if assigned[2] else ""
                    current.env[assigned[1]] = before + value
                else:
                    current.words += self.word()
        end()
        return made


def statements(
    text: str, known: Mapping[str, list[str]] | None = None, first_line: int = 1
) -> tuple[list[Statement], dict[str, list[str]]]:
    """The commands of a text in their order, and the variables that it sets. Refused says what is none, with its line."""
    reader = _Reader(text, known or {}, first_line)
    return reader.statements(), reader.known
