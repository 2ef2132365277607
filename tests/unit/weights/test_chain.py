# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Offers, and from whom a Spark takes which file."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.common.files import write_json
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.weights.chain import choice as chain_choice
from ansible.module_utils.sparklanes.weights.chain import lend as chain_lend
from ansible.module_utils.sparklanes.weights.chain import offer as chain_offer
from ansible.module_utils.sparklanes.weights.chain import take as chain_take
from ansible.module_utils.sparklanes.weights.chain.choice import Choice, Peer
from ansible.module_utils.sparklanes.weights.chain.offer import Offer, Work
from ansible.module_utils.sparklanes.weights.folder import ModelStore
from ansible.module_utils.sparklanes.weights.model import Content, Manifest, Model, Record, StagingError
from ansible.module_utils.sparklanes.weights.tools import Tool
from hypothesis import given
from hypothesis import strategies as st

FILES = [f"{number:02}" for number in range(20)]
MANIFEST = Manifest("acme/tiny", "c" * 40, {name: Content(1, "a" * 64) for name in FILES})


def offer(have: int = 0, running: bool = True, **work: Any) -> Offer:
    return Offer("model", MANIFEST, {name: MANIFEST.files[name] for name in FILES[:have]}, Work(running, **work))


def choice(*names: str, patience: float = 30, workers: int = 4) -> Choice:
    return Choice([Peer(name) for name in names], 0.0, patience, workers)


def giver(made: Choice, file: str, now: float) -> str | None:
    peer = made.giver(file, now)
    return peer.name if peer else None


def test_the_nearest_that_may_still_have_news_is_looked_at_most_often() -> None:
    made = choice("near", "far")
    assert [made.awaited_first(name, 1) for name in ("near", "far")] == [True, False], "either may be starting"
    made.offered("near", offer(3), 2)
    made.offered("far", offer(5), 2)
    assert made.awaited_first("near", 10)
    made.offered("far", offer(9), 18)
    assert made.awaited_first("far", 18), "the near one has been silent for 16 s"
    made.offered("near", offer(3), 19)
    assert made.awaited_first("near", 19), "it is back"
    made.offered("near", offer(20, running=False), 60)
    made.offered("far", offer(20, running=False), 60)
    assert not any(made.awaited_first(name, 60) for name in ("near", "far")), "both have all they will have"


def test_an_offer_survives_its_seal_and_only_with_the_right_secret() -> None:
    one = offer(3, done=5, phase="fetch")
    text = chain_offer.seal(one, ["once", "twice"]).encode()
    assert chain_offer.unseal(text, "once", "s1") == chain_offer.unseal(text, "twice", "s1") == one
    with pytest.raises(StagingError, match="s1 shows an offer that is not of this staging"):
        chain_offer.unseal(text, "guessed", "s1")
    for changed in (
        text.replace(b"a" * 64, b"b" * 64),
        text + b" ",
        text[:-1],
        text.replace(b"\n", b"\n\n"),
        text.partition(b"\n")[2],
    ):
        with pytest.raises(StagingError, match="not of this staging"):
            chain_offer.unseal(changed, "once", "s1")


@given(
    st.one_of(
        st.binary(max_size=40), st.dictionaries(st.text(max_size=6), st.text(max_size=6)).map(lambda d: json.dumps(d).encode())
    )
)
def test_any_text_is_no_offer(text: bytes) -> None:
    with pytest.raises(StagingError):
        chain_offer.unseal(text, "once", "s1")


BAD_OFFERS = [
    b"[" * 200_000,
    b"9" * 5000,
    b"\xff",
    b"",
    b"\n",
    b"[]",
    b"{}",
    b'{"name":1}',
    b'"' + b"x" * 200_000 + b'"',
    b'{"verified":{"a":[]}}',
]


@pytest.mark.parametrize("text", BAD_OFFERS, ids=range(len(BAD_OFFERS)))
def test_a_bad_offer_is_a_sentence_and_without_the_seal_it_is_not_even_read(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = f"x {chain_offer.user_of('s')}:{chain_offer._seal(text, 's')}\n".encode() + text
    with pytest.raises(StagingError, match="s1 shows an offer that is unreadable"):
        chain_offer.unseal(sealed, "s", "s1")
    monkeypatch.setattr(chain_offer.json, "loads", lambda _: pytest.fail("it was parsed"))
    user = chain_offer.user_of("s").encode()
    for head in (
        b"",
        b"\n",
        b" \n",
        user + b":\n",
        user + b":\xc3\xa9\n",
        user + b":" + b"0" * 64 + b"\n",
        b" " * 100_000 + b"\n",
    ):
        with pytest.raises(StagingError, match="s1 shows an offer that is not of this staging"):
            chain_offer.unseal(head + text, "s", "s1")
    monkeypatch.setattr(chain_offer, "OFFER_LIMIT", len(sealed) - 1)
    with pytest.raises(StagingError, match="s1 shows an offer of more than"):
        chain_offer.unseal(sealed, "s", "s1")


@pytest.mark.parametrize(
    "work", [{"error": 5}, {"failed": [1]}, {"running": "no"}, {"phase": None}, {"done": "x"}, {"done": 1e400}, [], 7, None]
)
def test_what_one_says_of_its_work_is_of_the_types_that_we_write(work: Any) -> None:
    """Its error was cut as a text where it was none, and the job ended in a traceback."""
    text = json.dumps({**offer().to_dict(), "work": work}).encode()
    with pytest.raises(StagingError, match="s1 shows an offer that is unreadable"):
        chain_offer.unseal(f"x {chain_offer.user_of('s')}:{chain_offer._seal(text, 's')}\n".encode() + text, "s", "s1")


class Shows(Tool):
    """In place of rsync: a Spark that shows one thing after the other."""

    def __init__(self, shown: list[bytes]) -> None:
        super().__init__(threading.Event())
        self.shown = shown

    def __call__(self, command: Sequence[str], *_: Any, **__: Any) -> tuple[int, str]:
        (Path(command[-1]) / "model.json").write_bytes(self.shown.pop(0) if len(self.shown) > 1 else self.shown[0])
        return 0, ""


def test_whatever_one_spark_shows_it_is_listened_to_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wait in ("LOOK_LESS", "LOOK_SELDOM"):
        monkeypatch.setattr(chain_take, wait, 0.01)
    sealed = [f"x {chain_offer.user_of('s')}:{chain_offer._seal(text, 's')}\n".encode() + text for text in BAD_OFFERS]
    (tmp_path / "job").mkdir()
    tool = Shows([*BAD_OFFERS, *sealed, chain_offer.seal(offer(3), ["s"]).encode()])
    peers = [{"name": "near", "url": "rsync://near"}]
    source = chain_take.ChainSource({"peers": peers, "patience": 30}, "s", tool, Reporter(tmp_path / "job", "stage"), 0, 1)
    one = Model("model", str(tmp_path / "m"), MANIFEST.repo, MANIFEST.revision)
    source.begin([one])
    try:
        assert source.manifest(one, ModelStore(tmp_path / "staged", one.path)) == MANIFEST
    finally:
        source.end()


def test_an_offer_with_a_name_that_leads_out_is_refused() -> None:
    evil = json.dumps({**offer().to_dict(), "verified": {"../x": {"size": 1}}})
    text = f"x {chain_offer.user_of('s')}:{chain_offer._seal(evil.encode(), 's')}\n{evil}"
    with pytest.raises(StagingError, match="is no name for a file"):
        chain_offer.unseal(text.encode(), "s", "s1")


def test_the_nearest_that_has_it_gives_it_and_is_waited_for() -> None:
    made = choice("near", "far")
    made.offered("far", offer(10), 1)
    assert giver(made, "05", 1) is None, "the nearest may be starting"
    made.offered("near", offer(3), 1)
    assert giver(made, "02", 1) == "near"
    assert giver(made, "05", 1) is None, "the nearest gets it soon"


def test_a_dead_one_is_passed_over_and_comes_back() -> None:
    made = choice("near", "far")
    made.offered("near", offer(3), 1)
    made.offered("far", offer(10), 20)
    made.silent("near", "connection refused")
    assert giver(made, "02", 20) == "far"
    made.offered("near", offer(3), 21)
    assert giver(made, "02", 21) == "near"


def test_one_that_never_answered_is_not_waited_for_long() -> None:
    made = choice("near", "far")
    made.offered("far", offer(10), chain_choice.SILENCE + 1)
    assert giver(made, "05", chain_choice.SILENCE + 1) == "far"


def test_one_whose_work_ended_gives_what_it_has_and_is_not_waited_for() -> None:
    made = choice("near", "far")
    for now in (1.0, 40.0):
        made.offered("near", offer(3, running=False, failed=True, error="disk full"), now)
        made.offered("far", offer(10), now)
    assert giver(made, "02", 40) == "near"
    assert giver(made, "05", 40) == "far"
    assert giver(made, "05", 40 - 15) is None, "what it says may be of an earlier work, at first"


def test_a_broken_transfer_sends_the_next_files_elsewhere_for_a_while() -> None:
    made = choice("near", "far")
    made.offered("near", offer(10), 1)
    made.offered("far", offer(10), 1)
    made.transfer_failed("near", "05", "timeout", 1)
    assert giver(made, "05", 2) == "far"
    made.offered("near", offer(10), 2 + chain_choice.PENALTY)
    made.offered("far", offer(10), 2 + chain_choice.PENALTY)
    assert giver(made, "05", 2 + chain_choice.PENALTY) == "near"
    alone = choice("near")
    alone.offered("near", offer(10), 1)
    alone.transfer_failed("near", "05", "timeout", 1)
    assert giver(alone, "05", 2) == "near", "nobody else has it"


def test_bad_content_twice_is_enough() -> None:
    made = choice("near", "far")
    made.offered("near", offer(10), 1)
    made.offered("far", offer(10), 1)
    made.bad_content("near", "05", "sent 05 with 1 byte")
    assert giver(made, "05", 1) == "near"
    made.bad_content("near", "05", "sent 05 with 1 byte")
    assert (giver(made, "05", 1), giver(made, "04", 1)) == ("far", "near")
    made.bad_content("far", "05", "too")
    made.bad_content("far", "05", "too")
    assert giver(made, "05", 1) is None
    assert "near: has 0 of the 1 files that are lacking here, and gave bad content: sent 05" in made.hopeless(["05"], 1)
    made.offered("near", offer(10), 2)
    assert "gave bad content: sent 05" in made.hopeless(["05"], 2), "that it answers again takes nothing back"


def test_one_that_falls_behind_is_passed_over_after_patience() -> None:
    made = choice("near", "far", workers=4)
    for now in range(60):
        made.offered("near", offer(2), now)
        made.offered("far", offer(12), now)
        late = made.pass_over_stalled(FILES[2:], busy=1, now=now)
        if now < 30:
            assert late is None
            assert giver(made, "05", now) is None
        if late:
            break
    assert late is made.peer("near")
    assert giver(made, "05", 31) == "far"


def test_a_flowing_chain_passes_nobody_over() -> None:
    """The nearest lacks what is under way to it, and no more: however long that goes on."""
    made = choice("near", "far", workers=4)
    for now in range(300):
        made.offered("near", offer(8), now)
        made.offered("far", offer(12), now)
        assert made.pass_over_stalled(FILES[8:], busy=1, now=now) is None


def test_a_slow_source_makes_nobody_late() -> None:
    made = choice("near", "far", workers=4)
    for now in range(0, 300, 10):
        have = now // 30
        made.offered("far", offer(have), now)
        made.offered("near", offer(max(0, have - 1) if now % 30 == 0 else have), now)
        assert made.pass_over_stalled(FILES[have:], busy=0, now=now) is None


def test_hopeless_says_of_each_why() -> None:
    made = choice("near", "mid", "far")
    for now in (1.0, 31.0):
        made.offered("near", offer(0, running=False), now)
        made.offered("mid", Offer("model"), now)
        made.offered("far", offer(3, running=False, failed=True, error="HTTP 503"), now)
    assert made.hopeless(FILES[2:], 31) == "", "one has a file"
    why = made.hopeless(FILES[3:], 31)
    assert why == (
        "near: has 0 of the 17 files that are lacking here; mid: has nothing of it;"
        " far: has 0 of the 17 files that are lacking here; its own staging failed: HTTP 503"
    )
    assert "has acme/tiny@cccccccccccc" in made.hopeless([], 31)


def test_silence_is_waited_out_then_told() -> None:
    made = choice("near")
    made.offered("near", offer(0), 1)
    made.silent("near", "no route")
    assert made.hopeless(FILES, 60) == ""
    assert made.hopeless(FILES, 92) == "near: silent for 91 s (no route)"


@pytest.mark.parametrize("running", [True, False])
def test_one_that_is_at_work_is_waited_for_though_no_byte_is_seen(running: bool) -> None:
    """A client that starts on a busy Spark, or waits as the Hub asked it to, showed nothing for 100 s: the others had given up."""
    made = choice("near", "other")
    for now in (1.0, 40.0, 100.0):
        made.offered("near", offer(0, running=running), now)
        made.offered("other", Offer("model"), now)
    assert (made.hopeless(FILES, 100) == "") is running
    made.offered("near", offer(0, running=running), chain_choice.STANDING + 2)
    made.offered("other", Offer("model"), chain_choice.STANDING + 2)
    why = made.hopeless(FILES, chain_choice.STANDING + 2)
    assert ("its own staging runs" in why) is running
    assert "other: has nothing of it" in why


def test_one_that_offers_and_never_gives_is_not_asked_without_end() -> None:
    """It lives and has the file by its own word, so the others went on asking it for ever."""
    made = choice("near")
    end = int(chain_choice.STANDING) + 70
    for now in range(0, end, 10):
        made.offered("near", offer(20, running=False), now)
        asked = now <= chain_choice.STANDING + 50
        assert (giver(made, "05", now) == "near") is (made.hopeless(["05"], now) == "") is asked, (
            "as long as something of it comes"
        )
        made.transfer_failed("near", "05", "near did not give 05 (rsync status 23)", now, more=now == 30)
    assert giver(made, "06", end) == "near", "of another file nothing is known"
    assert made.hopeless(["05"], end).endswith("and never gave what it offers: near did not give 05 (rsync status 23)")


@given(st.integers(0, 10**9))
def test_a_file_that_a_living_spark_has_is_had_in_the_end(seed: int) -> None:
    """Whatever happened before: once all is quiet and one that has all lives, it gives all."""
    dice = random.Random(seed)
    names = ["a", "b", "c"]
    made, now = choice(*names), 0.0
    for _ in range(40):
        now += dice.random() * 20
        name, event = dice.choice(names), dice.randrange(5)
        if event < 2:
            made.offered(name, offer(dice.randrange(20), dice.random() < 0.5), now)
        elif event == 2:
            made.silent(name, "?")
        elif event == 3:
            made.transfer_failed(name, "05", "?", now)
        else:
            made.pass_over_stalled(FILES, dice.randrange(2), now)
    for _ in range(200):
        now += 1
        made.offered("c", offer(20, running=False), now)
        made.pass_over_stalled(FILES, 0, now)
    assert {giver(made, file, now) for file in FILES} <= {"c"}
    assert made.hopeless(FILES, now) == ""


def test_work_is_told_of_this_staging_only(tmp_path: Path) -> None:
    state = {"pid": 7, "boot": "b", "phase": "fetch", "done": 5, "began": 100.0}
    (tmp_path / "state.json").write_text(json.dumps({"job": "stage", **state}))
    alive = chain_offer.work_of(tmp_path, "b", 200, lambda pid, folder: pid == 7)
    assert alive == Work(True, phase="fetch", done=5), "attached to"
    assert chain_offer.work_of(tmp_path, "b", 200, lambda pid, folder: False) == Work(), "of an earlier one"
    died = chain_offer.work_of(tmp_path, "b", 50, lambda pid, folder: False)
    assert (died.running, died.failed, died.error) == (False, True, "its process is gone")
    assert chain_offer.work_of(tmp_path, "other", 50, lambda pid, folder: True) == Work()
    (tmp_path / "state.json").unlink()
    assert chain_offer.work_of(tmp_path, "b", 50) == Work()


def test_what_staging_notes_is_seen_at_a_glance(tmp_path: Path) -> None:
    model = Model("model", str(tmp_path / "m"))
    store = ModelStore(tmp_path / "staged", model.path)
    offers = chain_offer.Offers([model], tmp_path / "staged", tmp_path / "job", tmp_path, False, 0.0, "boot")
    seen = [offers.stamps()]
    assert offers.stamps() == seen[0]
    store.save_manifest(MANIFEST)
    seen.append(offers.stamps())
    for count in (1, 2):
        store.save(MANIFEST, {name: Record(1, 1, "a" * 64) for name in FILES[:count]}, complete=False)
        seen.append(offers.stamps())
    store.save(MANIFEST, {}, complete=True)
    seen.append(offers.stamps())
    chain_lend.add_secret(tmp_path, "twice")
    seen.append(offers.stamps())
    write_json(tmp_path / "job" / "state.json", {"done": 1})
    seen.append(offers.stamps())
    assert all(one != other for one, other in itertools.pairwise(seen))


def test_the_daemons_configuration_cannot_be_broken_by_a_name(tmp_path: Path) -> None:
    text = chain_lend.config({"model": "/m/a b"}, "10.0.0.1", 18730, ["10.0.0.1", "10.0.0.2"], tmp_path, tmp_path / "log", True)
    assert "read only = yes" in text
    assert "socket options = TCP_NODELAY" in text, "else each start of a transfer waits 0.1 s for acknowledgements"
    assert "hosts allow = 10.0.0.1/32 10.0.0.2/32\nhosts deny = *" in text
    for path in ("/m/a\nread only = no", "/m/%b", " /m/a"):
        with pytest.raises(StagingError, match="would break"):
            chain_lend.config({"model": path}, "10.0.0.1", 1, ["10.0.0.1"], tmp_path, tmp_path, True)
    with pytest.raises(StagingError, match="nobody is allowed"):
        chain_lend.config({}, "10.0.0.1", 1, [], tmp_path, tmp_path, True)
    with contextlib.suppress(ValueError):
        chain_lend.config({}, "10.0.0.1\nuid = 0", 1, ["10.0.0.1"], tmp_path, tmp_path, True)
        pytest.fail("an address that is none")
