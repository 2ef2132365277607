# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What breaks something on the sandbox's nodes, and puts it right again.

An injector knows nothing of how the product finds or names a fault: it uses docker, ip, iptables, signals, mounts and bytes. Each undoes
what it did, also when it did only half of it; `undo` of one that never ran does nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from benchmarks.faults.nodes import Fleet

KNOWN: dict[str, type[Injector]] = {}


class Injector(ABC):
    """One thing that is broken. Subclasses are dataclasses whose fields are what the table says beside the name."""

    name: ClassVar[str]

    def __init_subclass__(cls, name: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if name:
            cls.name = name
            KNOWN[name] = cls

    @abstractmethod
    def inject(self, fleet: Fleet) -> None: ...

    @abstractmethod
    def undo(self, fleet: Fleet) -> None: ...

    def touched(self, fleet: Fleet) -> str:
        """What the product did to a thing of somebody else that the injector put there; empty where it left it alone."""
        return ""


class Once(Injector):
    """What leaves nothing behind to be undone: the next launch replaces what it broke."""

    def undo(self, fleet: Fleet) -> None:
        return None
