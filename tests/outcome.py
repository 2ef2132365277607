"""What a playbook run ended with, for tests that type commands as a person does."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """Exit status and all that was printed."""

    rc: int
    out: str

    @property
    def changed(self) -> int:
        """Changes over all hosts, from the recap."""
        return sum(int(count) for count in re.findall(r"changed=(\d+)", self.out))

    def ok(self) -> Outcome:
        assert self.rc == 0, self.out[-6000:]
        return self

    def failed(self, *words: str) -> Outcome:
        """It failed, and said these things (line breaks of the output aside)."""
        assert self.rc != 0, self.out[-6000:]
        flat = re.sub(r"\s+", " ", self.out)
        for word in words:
            assert word in flat, f"{word!r} is not in:\n{self.out[-6000:]}"
        return self
