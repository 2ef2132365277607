"""A systemd that is played by a small state machine: one unit of ours below a root, and what its tests make of start and stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Command = Callable[[list[str]], tuple[int, str, str]]


class FakeSystemd:
    """Answers `commands.run`. `calls` are the verbs that change something; `started` and `stopped` are what the unit then does.

    As systemd 252: an enabled unit is told by the links on the disk only, and a new file is known without a reload, while another
    text of a known one is not.
    """

    def __init__(self, root: Path, unit: str, others: dict[str, Command] | None = None) -> None:
        self.root, self.unit, self.others = root, unit, others or {}
        self.path = root / "etc/systemd/system" / unit
        self.link = root / "etc/systemd/system/multi-user.target.wants" / unit
        self.active = "inactive"
        self.known: str | None = None
        self.calls: list[str] = []
        self.refuses: set[str] = set()
        self.started: Callable[[], str] = lambda: "active"
        self.stopped: Callable[[], str] = lambda: "inactive"

    @property
    def enabled(self) -> bool:
        return self.link.is_symlink()

    def run(self, argv: list[str], **_: Any) -> tuple[int, str, str]:
        if argv[0] == "journalctl":
            return 0, "the journal\n", ""
        if argv[0] != "systemctl":
            return self.others[argv[0]](argv)
        verb, text = argv[1], self.path.read_text() if self.path.exists() else None
        if self.known is None or text is None:
            self.known = text
        if verb == "show":
            stale = "yes" if text != self.known else "no"
            loaded = "loaded" if self.known is not None else "not-found"
            return 0, f"LoadState={loaded}\nActiveState={self.active}\nNeedDaemonReload={stale}\n", ""
        if verb == "is-enabled":
            return (0, "enabled\n", "") if self.enabled else (1, "disabled\n" if text is not None else "", "")
        self.calls.append(" ".join(argv[1:]))
        if verb in self.refuses:
            return 1, "", f"{verb} was refused"
        if verb == "daemon-reload":
            self.known = text
            return 0, "", ""
        assert argv[-1] == self.unit, argv
        assert text is not None, f"{argv} of a unit that isn't there"
        if verb in ("enable", "disable"):
            assert "--no-reload" in argv, "a reload can cost a running container its GPU"
            if verb == "enable":
                assert "WantedBy=multi-user.target" in text
                self.link.parent.mkdir(parents=True, exist_ok=True)
                self.link.symlink_to(f"/etc/systemd/system/{self.unit}")
            else:
                self.link.unlink()
        elif verb == "restart":
            self.active = self.started()
        elif verb == "stop":
            self.active = self.stopped()
        else:
            raise AssertionError(f"nobody expected {argv}")
        return 0, "", ""
