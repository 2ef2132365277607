# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""From which Spark of the chain the next file is taken.

The rule is pure: it is told what was heard when, and says from whom to take. It waits for the nearest Spark while that
one lives and keeps up. A dead one, a silent one and one that has fallen behind are passed over, up to the Spark that fetches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ansible.module_utils.sparklanes.weights.chain.offer import Offer

# A Spark whose offer couldn't be had for so long is dead as far as the chain is concerned; it may come back.
SILENCE = 15.0
# A Spark that gave a broken transfer is left alone for so long, unless nobody else has the file.
PENALTY = 30.0
# Bad content of one file from one Spark: asked twice, then not again.
BAD_LIMIT = 2
# Seconds that one which is at work may show nothing new while nobody else has anything: two windows of the Hub's rate limit, which are of
# five minutes each (huggingface.co/docs/hub/rate-limits).
STANDING = 600.0
# Letters of another Spark's error that are repeated here.
ERROR_LETTERS = 200


@dataclass
class Peer:
    """A Spark before this one, and what is known of it. Times are the caller's."""

    name: str
    offer: Offer | None = None
    heard: float | None = None  # when it last answered
    last_change: float | None = None  # when its offer last was another one than before
    trouble: str = ""  # why it did not answer, or broke a transfer
    avoid_until: float = 0.0  # after a transfer that failed
    behind: bool = False  # it had nothing for us for long while others had
    bad: dict[str, int] = field(default_factory=dict)  # file → how often its content was bad
    failing: dict[str, float] = field(default_factory=dict)  # file → since when nothing of it came
    bad_why: str = ""  # how the last of them was bad; unlike trouble, no later answer takes that back

    def live(self, now: float) -> bool:
        return self.heard is not None and now - self.heard <= SILENCE

    def avoided(self, now: float) -> bool:
        return now < self.avoid_until

    def trusted_with(self, file: str) -> bool:
        return self.bad.get(file, 0) < BAD_LIMIT

    def has(self, file: str) -> bool:
        return self.offer is not None and file in self.offer.verified and self.trusted_with(file)


@dataclass
class Choice:
    """From whom to take. `peers`: the nearest first."""

    peers: list[Peer]
    began: float
    patience: float
    workers: int
    stalled_since: float | None = None
    last_arrival: float = 0.0  # when a file last arrived

    def __post_init__(self) -> None:
        self.last_arrival = self.began

    def peer(self, name: str) -> Peer:
        return next(peer for peer in self.peers if peer.name == name)

    # What was heard.

    def offered(self, name: str, offer: Offer, now: float) -> None:
        peer = self.peer(name)
        if offer != peer.offer:
            peer.last_change = now
        peer.offer, peer.heard = offer, now
        if not peer.avoided(now):
            peer.trouble = ""

    def silent(self, name: str, why: str) -> None:
        self.peer(name).trouble = why

    def arrived(self, now: float) -> None:
        self.last_arrival, self.stalled_since = now, None

    def transfer_failed(self, name: str, file: str, why: str, now: float, more: bool = False) -> None:
        """A transfer from there failed. more: bytes of the file came all the same, from which the next one goes on."""
        peer = self.peer(name)
        peer.trouble, peer.avoid_until = why, now + PENALTY
        if more:
            peer.failing.pop(file, None)
        elif now - peer.failing.setdefault(file, now) > max(STANDING, 3 * self.patience):
            # It offers what it never gives.
            peer.bad_why, peer.bad[file] = why, BAD_LIMIT

    def bad_content(self, name: str, file: str, why: str) -> None:
        """A file from there was not what it must be."""
        peer = self.peer(name)
        peer.trouble = peer.bad_why = why
        peer.bad[file] = peer.bad.get(file, 0) + 1

    # What follows from it.

    def awaited(self, peer: Peer, now: float) -> bool:
        """Whether it is worth waiting for what this one does not have yet."""
        if peer.heard is None:
            return now - self.began <= SILENCE  # it may be starting
        # What it says of its work may be of an earlier one, until it begins.
        starting = now - self.began <= self.patience
        working = peer.offer is not None and (peer.offer.work.running or starting)
        return peer.live(now) and working and not peer.behind and not peer.avoided(now)

    def awaited_first(self, name: str, now: float) -> bool:
        """Whether this is the one that is waited for."""
        return next((peer.name for peer in self.peers if self.awaited(peer, now)), "") == name

    def giver(self, file: str, now: float) -> Peer | None:
        """Who gives this file now; None: nobody yet."""
        for peer in self.peers:
            if peer.has(file) and peer.live(now) and not peer.avoided(now):
                return peer
            if self.awaited(peer, now) and peer.trusted_with(file):
                return None
        return next((peer for peer in self.peers if peer.has(file) and peer.live(now)), None)

    def pass_over_stalled(self, lacking: Sequence[str], busy: int, now: float) -> Peer | None:
        """Called while a worker has nothing to do: who has just been found to hold the others up, if anybody.

        In a chain that flows, a Spark lacks about as many files as are under way to it. One that lacks more than
        that for long, or any while nothing arrives behind it, is passed over from then on.
        """
        awaited = (peer for peer in self.peers if self.awaited(peer, now))
        slow = next((peer for peer in awaited if self._holds_up(peer, lacking, busy, now)), None)
        if slow is None:
            self.stalled_since = None
        elif self.stalled_since is None:
            self.stalled_since = now
        elif now - self.stalled_since >= self.patience:
            slow.behind, self.stalled_since = True, None
            return slow
        return None

    def _holds_up(self, near: Peer, lacking: Sequence[str], busy: int, now: float) -> bool:
        """Whether one behind it has more files for us than can be under way, or any while nothing comes."""
        for far in self.peers[self.peers.index(near) + 1 :]:
            lead = sum(1 for file in lacking if far.has(file) and not near.has(file)) if far.live(now) else 0
            if lead > self.workers or (lead and busy == 0):
                return True
        return False

    def hopeless(self, lacking: Sequence[str], now: float) -> str:
        """Why waiting is of no use any more, or nothing. Called while nothing is under way."""
        if any(peer.has(file) and peer.live(now) for peer in self.peers for file in lacking):
            return ""  # whoever is waited for in its place gives way in the end
        change = max([peer.last_change or self.began for peer in self.peers] + [self.last_arrival])
        ended = all(self._spent(peer, lacking, now) for peer in self.peers)
        if not ended and now - change <= (STANDING if self._works(now) else 3 * self.patience):
            return ""
        return "; ".join(self._describe(peer, lacking, now) for peer in self.peers) or "there is nobody to take it from"

    def _works(self, now: float) -> bool:
        """Whether one is at it, though nothing of it can be seen: a slow disk or a source that asks for patience shows no byte for minutes."""
        return any(
            peer.live(now) and peer.offer is not None and peer.offer.work.running and not peer.behind for peer in self.peers
        )

    def _spent(self, peer: Peer, lacking: Sequence[str], now: float) -> bool:
        """Whether nothing more will come of this one."""
        if lacking and not any(peer.trusted_with(file) for file in lacking):
            return True
        return peer.live(now) and not self.awaited(peer, now) and not peer.behind and not peer.avoided(now)

    def _describe(self, peer: Peer, lacking: Sequence[str], now: float) -> str:
        if not peer.live(now):
            silent = f"silent for {now - (peer.heard or self.began):.0f} s"
            return f"{peer.name}: {silent}" + (f" ({peer.trouble})" if peer.trouble else "")
        offer = peer.offer
        if offer is None or offer.manifest is None:
            text = "has nothing of it"
        elif not lacking:
            text = f"has {offer.manifest.repo}@{offer.manifest.revision[:12]}"
        else:
            text = f"has {sum(1 for file in lacking if peer.has(file))} of the {len(lacking)} files that are lacking here"
        if peer.bad:
            how = "never gave what it offers" if peer.failing.keys() & peer.bad.keys() else "gave bad content"
            text += f", and {how}: {peer.bad_why}"
        if offer is not None and offer.work.running:
            text += f"; its own staging runs ({offer.work.phase or 'it begins'})"
        if offer is not None and offer.work.failed:
            # It may tell of others in its turn; what is said there is in its own result.
            cut = f"{offer.work.error[:ERROR_LETTERS]}…" if len(offer.work.error) > ERROR_LETTERS else offer.work.error
            text += f"; its own staging failed: {cut}"
        return f"{peer.name}: {text}"
