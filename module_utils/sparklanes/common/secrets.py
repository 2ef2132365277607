# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What is a secret, by its name or by its look, and texts with secrets blanked.

A name that is judged wrongly costs little in one direction (a person names the variable in `lane_secret_env`) and a key in
a file in the other, so what is unclear is a secret. Names that count, place or switch something (`MAX_TOKENS`, `TOKEN_FILE`,
`HF_HUB_DISABLE_IMPLICIT_TOKEN`) are none: engines have many of these.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

HIDDEN = "(hidden)"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words of names, lower case. Secret wherever one stands:
_ALWAYS = re.compile(r"\w*(?:secrets?|passwords?|passwd|passphrase|credentials?|apikeys?)|bearer|authorization")
# Secret at the end of a name, written as one word with others or by itself: hftoken, TOKEN, but no TOKENIZER, no MONKEY.
_TOKEN = re.compile(r"\w*token")
_JOINED_KEY = re.compile(
    r"\w*(?:access|account|admin|ai|auth|encryption|license|login|master|private|session|signing|storage)keys?"
)
# Secret as two neighbours, also before a third: API_KEYS, DB_PASS, AZURE_STORAGE_CONNECTION_STRING.
_PAIRS = {
    *((first, second) for first in ("access", "api", "auth", "encryption", "private", "signing") for second in ("key", "keys")),
    *((first, "tokens") for first in ("access", "api", "auth", "bearer", "refresh")),
    *(
        (first, "pass")
        for first in ("admin", "db", "ftp", "http", "mail", "mysql", "pg", "postgres", "proxy", "redis", "registry")
    ),
    *((first, "pass") for first in ("root", "smtp", "ssh", "sudo", "user", "vault")),
    *((first, "auth") for first in ("basic", "docker", "http", "npm", "proxy", "redis", "registry")),
    ("connection", "string"),
}
# What the last word makes of the name: where the secret is, what it is called or how long it may be, not the secret.
_ABOUT = _words(
    "algorithm alias bits count cap dir directory enabled env expiry file folder format header id ids index len length limit "
    "lifetime mode name names num path policy prefix provider required size suffix timeout ttl type uri url version"
)
# And any word: a switch.
_SWITCH = _words("allow disable enable hide ignore no require show skip use without")
# The word before: a token of text, not of access; a key of a table or one that everybody may have.
_TEXT = _words(
    "audio begin bonus bos cls control draft end eos first forced image img last mask max min n newline next num output pad per prompt "
    "reasoning sampled sep sink special start stop tgt think thinking unk video vision"
)
_TABLE = _words("cache config dict foreign group lookup lora object partition primary public query routing shard sort state")
# A pass of a compiler or an algorithm, not one into somewhere: FUSION_PASS, TWO_PASS.
_PASS_OVER = _words(
    "all backward compile compiler custom decode dry fast first forward fuse fused fusion gemm grad graph inductor lowering multi noop one opt "
    "optimization optimizer post pre prefill reduce second single split three two"
)
_NAMES_OF_FILES = frozenset({"google_application_credentials"})

# Hugging Face, OpenAI and Anthropic, GitHub, GitLab, NVIDIA, Slack, Google, Groq, AWS, Docker, PyPI, npm; a web token, a private key; in an
# address a password (up to the last @ of its host), or a name so long that it is a token.
_LOOKS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|nvapi-[\w-]{30,}"
    r"|xox[abeoprs]-[\w-]{10,}|AIza[\w-]{35}|gsk_[A-Za-z0-9]{30,}|A[KS]IA[A-Z0-9]{16}|dckr_pat_[\w-]{20,}|pypi-[\w-]{40,}|npm_[A-Za-z0-9]{36}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+)"
    r"|-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----"
    r"|(?<=://)[^\s/:@?#]*:[^\s/?#]+(?=@)"
    r"|(?<=://)[^\s/:@?#]{20,}(?=@)"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# A name and what parts it from its value: `--flag value`, `NAME=value`, `"name": "value"`.
_GIVEN = re.compile(
    r"""(?<![\w.-])(?P<name>--[A-Za-z][\w.-]*(?=[=\s])|[A-Za-z_][\w.-]*(?=["']?\s*[:=]))(?P<is>["']?\s*[:=]\s*|\s+)"""
)
_VALUE = re.compile(r"""'[^']*'|"[^"]*"|\[[^\]]*\]|(?:(?:Bearer|Basic)\s+)?[^\s;,}\]'"]+""", re.IGNORECASE)


def words_of(name: str) -> list[str]:
    """`--hf-token`, `HF_TOKEN` and `hfToken` are the words hf and token. Numbers and v2 at the end say which one, not what."""
    words = [word.lower() for part in re.split(r"[^A-Za-z0-9]+", name) for word in _CAMEL.split(part) if word]
    while len(words) > 1 and re.fullmatch(r"v?\d+|new|old|backup", words[-1]):
        words.pop()
    return words


def secret_name(name: str) -> bool:
    """Whether what has this name (a variable, a flag, a key of JSON) is a secret."""
    words = words_of(name)
    if not words or words[-1] in _ABOUT or _SWITCH & set(words) or "_".join(words) in _NAMES_OF_FILES:
        return False
    last, before = words[-1].rstrip("0123456789"), set(words[:-1])
    if any(_ALWAYS.fullmatch(word) for word in words) or _PAIRS & set(itertools.pairwise(words)):
        return True
    if _TOKEN.fullmatch(last):
        return not (_TEXT & before or re.fullmatch(r"(?:max|min|num)\w*", last))
    return (
        bool(_JOINED_KEY.fullmatch(last))
        or (last == "key" and not _TABLE & before)
        or (last in ("pwd", "pw", "pat") and bool(before))  # PWD alone is the folder of a shell
        or (last == "pass" and bool(before) and not _PASS_OVER & before)
    )


def secret_value(text: str) -> bool:
    """Whether a text holds what looks like a key or a password, whatever its name is."""
    return bool(_LOOKS.search(text))


def hidden(name: str, value: str) -> str:
    """The value, or that it is hidden where its name says that it is a secret; keys that stand in it are blanked."""
    return HIDDEN if secret_name(name) else blanked(value)


def blanked(text: str) -> str:
    """A text (a command line of a shell, JSON, a URL) without its secrets; all else is as it was."""
    made, position = "", 0
    while given := _GIVEN.search(text, position):
        made += text[position : given.end()]
        position = given.end()
        if secret_name(given["name"]) and (value := _VALUE.match(text, position)) and not value[0].startswith("--"):
            form = {"[": '["%s"]', '"': '"%s"', "'": "'%s'"}.get(value[0][0], "%s")  # JSON stays JSON
            made += form % HIDDEN
            position = value.end()
    return _LOOKS.sub(HIDDEN, made + text[position:])


def blanked_words(words: Iterable[str]) -> Iterator[str]:
    """The words of a command without its secrets: `--api-key X`, `--api-key=X`, and both inside the text of a `bash -c`."""
    secret = False
    for word in words:
        if secret and not word.startswith("--"):
            yield HIDDEN  # a flag may have several values
            continue
        secret = word.startswith("--") and "=" not in word and not re.search(r"\s", word) and secret_name(word)
        yield blanked(word)


def blanked_env(pairs: Iterable[str], known: Iterable[str] | None) -> list[str]:
    """`NAME=value` of a container, hidden where NAME is known to be a secret's or says so; None for `known` hides all values."""
    names = None if known is None else set(known)
    return [
        f"{name}={HIDDEN if names is None or name in names else hidden(name, value)}" if equals else name
        for name, equals, value in (pair.partition("=") for pair in pairs)
    ]


def secret_flags(words: Iterable[str]) -> Iterator[str]:
    """The flags of a command that carry a secret in their value: `--api-key X`, `--api-key=X`."""
    pending = ""
    for word in words:
        if pending and not word.startswith("--"):
            yield pending
        name, equals, _ = word.partition("=")
        named = word.startswith("--") and not re.search(r"\s", name) and secret_name(name)
        if named and equals:
            yield name
        pending = name if named and not equals else ""


def secret_keys(data: object, path: str = "") -> Iterator[str]:
    """Where in nested values, or in the text of JSON, something stands under a secret's name: `kv.api_key`. That of `path` is not asked."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            where = f"{path}.{key}" if path else str(key)
            if secret_name(str(key)) and value is not None and not isinstance(value, bool | Mapping | list):
                yield where
            yield from secret_keys(value, where)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from secret_keys(value, path)
    elif isinstance(data, str) and data.lstrip()[:1] in ("{", "[") and blanked(data) != data:
        yield path
