# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What every importer finds: how somebody starts an engine, and what became of each part of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.common.secrets import HIDDEN, blanked, secret_keys, secret_name, secret_value
from ansible.module_utils.sparklanes.engine.command import Flag

# What became of a part, in the order in which it is shown.
OURS, VERBATIM, DROPPED, OPEN, SECRET = "recognised", "kept verbatim", "dropped", "open", "secret"
FATES = (OURS, VERBATIM, DROPPED, OPEN, SECRET)


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class Row:
    fate: str
    what: str  # flag --port 8000, env NCCL_NET, mount /cache, option --name
    where: str = ""  # the variable that has it now
    why: str = ""


@dataclass
class Launch:
    """An engine as somebody starts it. Values of secrets are gone already: their names stand in `rows`."""

    kind: str
    image: str = ""
    image_ids: list[str] = field(default_factory=list)
    image_digests: list[str] = field(default_factory=list)
    entrypoint: str = ""
    prefix: list[str] = field(default_factory=list)  # words before the model: vllm serve
    model: str = ""
    revision: str = ""
    flags: list[Flag] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    nodes: int | None = None
    title: str = ""
    warnings: list[str] = field(default_factory=list)
    secret_env: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def note(self, fate: str, what: str, where: str = "", why: str = "") -> None:
        self.rows.append(Row(fate, blanked(what), where, why))

    def warn(self, text: str) -> None:
        """What the lane itself says of its source."""
        self.warnings.append(blanked(text))

    def take_env(self, pairs: Iterable[tuple[str, str]]) -> None:
        """The environment without what is a secret. A value that was hidden before it came here was one."""
        for name, value in pairs:
            if secret_name(name) or secret_value(value) or value == HIDDEN:
                self.secret(f"env {name}", name)
            else:
                self.env[name] = value

    def take_flags(self, flags: Iterable[Flag]) -> None:
        for name, values in flags:
            text = " ".join(values)
            inside = next(secret_keys(text, name), "") if values else ""
            if values and (secret_name(name) or secret_value(text) or HIDDEN in text or inside):
                self.secret(f"flag {inside or name}", "VLLM_API_KEY" if name.replace("_", "-") == "--api-key" else "")
            else:
                self.flags.append((name, values))

    def secret(self, what: str, name: str) -> None:
        """A secret is named, and where its value belongs."""
        if name == "VLLM_API_KEY":
            self.note(SECRET, what, "engine_api_key", "not written: put the value into the vault as engine_api_key")
        elif "hf" in what.lower() or "hugging" in what.lower():
            self.note(
                SECRET,
                what,
                "hub_token",
                "not written: put the value into the vault as hub_token; staging asks the Hub, the engine doesn't",
            )
        elif _NAME.fullmatch(name):
            if name not in self.secret_env:
                self.secret_env.append(name)
            why = f"not written: put the value into the vault, and name it in rank_secret_env: {{{name}: …}}"
            self.note(SECRET, what, "lane_secret_env", why)
        else:
            self.note(
                SECRET,
                what,
                "",
                "not written: a command can be read on its Spark. Give it by a variable that lane_secret_env names",
            )
