# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What the answers of the Hub, a registry and the files of this machine make of a lane: rows for a person, values to be written, checks.

What nobody can look up names who could know.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, WARN, Check
from ansible.module_utils.sparklanes.common.sizes import human_bytes
from ansible.module_utils.sparklanes.common.tables import columns
from ansible.module_utils.sparklanes.lane.pin import MODELS, NEWEST, Wanted, local, who_knows
from ansible.module_utils.sparklanes.lane.site_file import Setting
from ansible.module_utils.sparklanes.lane.unknowns import OpenPart, open_parts
from ansible.module_utils.sparklanes.weights import hub_cache

OPEN = "open"
WIDTH = 140
# A file of a lane on this machine: its sha256 and when it was changed last (ISO), None where it is not there.
Hashed = Callable[[str, str], tuple[str, str] | None]


@dataclass(frozen=True)
class Row:
    """One pin: where it stands in the lane, what it is, what it becomes (empty: stays), when that was made, and what was said of it."""

    path: str
    now: str
    becomes: str
    made: str
    told: str


@dataclass
class Pins:
    """What came of asking. `given`: what is written, by what was asked, so that a later answer can be compared with it."""

    rows: list[Row] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def weigh(
    lane: Mapping[str, Any],
    wanted: Wanted,
    hub: Mapping[str, Any],
    image: Mapping[str, Any],
    hashed: Hashed,
    today: datetime.date,
) -> Pins:
    """What the answers make of the lane. hub, image: as the modules hub_info and registry_info gave them (empty: not asked)."""
    pins, parts = Pins(), open_parts(lane)
    # The lane's own words of what it leaves open: which commits were seen in use, what a commit must have.
    pins.notes += [
        f"{path}: {part.what}." for path, part in parts.items() if part.said and path.endswith((".revision", ".digest"))
    ]
    for name in MODELS:
        if (lane[f"lane_{name}"] or {}).get("repo"):
            _weigh_model(pins, lane, name, wanted, hub.get(name) or {}, today)
            parts.pop(f"lane_{name}.revision", None)
    _weigh_image(pins, lane, wanted, image, parts.pop("lane_image.digest", None), today)
    for path, part in parts.items():
        if part.keys[0] in ("lane_overlays", "lane_extras"):
            _weigh_file(pins, lane, path, part, hashed, today)
        else:
            pins.rows.append(Row(path, OPEN, "", "", "nobody can look it up"))
            pins.checks.append(_ask_a_person(lane, path, part))
    return pins


def _ask_a_person(lane: Mapping[str, Any], path: str, part: OpenPart) -> Check:
    remedy = part.remedy or f"Who could know: {who_knows(lane)}. Then: {part.line}"
    return Check("PIN.PERSON", str(lane["lane_id"]), WARN, part.what, f"{path} is known before launch", remedy)


def _weigh_model(
    pins: Pins, lane: Mapping[str, Any], name: str, wanted: Wanted, told: Mapping[str, Any], today: datetime.date
) -> None:
    model, path, who = lane[f"lane_{name}"], f"lane_{name}.revision", str(lane["lane_id"])
    repo, pinned = str(model["repo"]), str(model.get("revision") or "")
    if not told:
        _weigh_directory(pins, lane, name, today)
        return
    if told["error"]:
        status = WARN if pinned and not getattr(wanted, name) and not wanted.all else FAIL
        pins.rows.append(Row(path, short(pinned) or OPEN, "", "", "could not be asked: see below"))
        pins.checks.append(Check("PIN.HUB", who, status, told["error"], f"an answer about {repo}"))
        return
    commit, at = str(told["commit"]), str(told["source"])
    before = told.get("pinned") or {}
    if not commit:
        if before.get("error"):
            pins.checks.append(Check("PIN.HUB", who, WARN, str(before["error"]), f"the pinned commit of {repo}"))
        pins.rows.append(Row(path, short(pinned), "", made(before.get("date"), today), f"{repo} at {at}"))
        return
    holds = (
        f"{plural(told['shards'], 'shard')}, {human_bytes(told['bytes'])} together"
        if told["shards"]
        else plural(told["files"], "file")
    )
    said = f"{told['asked']} of {repo} at {at}: {holds}"
    if told.get("since"):
        said += f"; the list is of {str(told['since'])[:10]}"
    if pinned == commit:
        pins.rows.append(Row(path, short(pinned), "", made(told["date"], today), f"still {said}"))
        return
    if pinned:
        behind = before.get("behind")
        older = (
            f"; {plural(behind, 'commit')} newer than the pin of {day(before.get('date'))}"
            if behind
            else f"; the pin is of {day(before.get('date'))}"
        )
        said += older if not before.get("error") else "; the pinned commit is not known there any more"
    wrong = list(misfits(model, told))
    if wrong:
        pins.rows.append(
            Row(path, short(pinned) or OPEN, "", made(told["date"], today), f"{said}. It is not what the lane expects: see below")
        )
        remedy = f"Choose a commit that fits: -e pin_{name}_revision=COMMIT (its history: {at}/{repo}/commits/{NEWEST}), or correct the lane's expectation."
        pins.checks.append(
            Check("PIN.FITS", who, FAIL, f"{repo}@{short(commit)}: {'; '.join(wrong)}", "what the lane says of its files", remedy)
        )
        return
    pins.rows.append(Row(path, short(pinned) or OPEN, short(commit), made(told["date"], today), said))
    comment = f"on {today} by pin: {told['asked']} of {repo} at {at}, committed {day(told['date'])}{instead(pinned)}"
    _give(pins, path, f"{told['asked']} of {repo} at {at}", commit, comment, (f"lane_{name}", "revision"))


def _weigh_directory(pins: Pins, lane: Mapping[str, Any], name: str, today: datetime.date) -> None:
    """Of files that lie on the Sparks already: the commit stands in the path of a Hub cache, and nowhere else that is looked at here."""
    model, path = lane[f"lane_{name}"], f"lane_{name}.revision"
    pinned, cached = str(model.get("revision") or ""), hub_cache.snapshot(str(model.get("path") or ""))
    if pinned:
        pins.rows.append(
            Row(
                path,
                short(pinned),
                "",
                "",
                "the files lie on the Sparks (model_weights_source: directory), and none is asked here",
            )
        )
    elif cached and len(cached.commit) == 40:
        pins.rows.append(Row(path, OPEN, short(cached.commit), "", f"the snapshot that lane_{name}.path names"))
        comment = f"on {today} by pin: the snapshot of a Hub cache that lane_{name}.path names"
        _give(pins, path, f"the snapshot in {model['path']}", cached.commit, comment, (f"lane_{name}", "revision"))
    else:
        pins.rows.append(Row(path, OPEN, "", "", "the files lie on the Sparks, and none is asked here"))
        found = f"of which commit of {model['repo']} the files at {model.get('path')} are stands in no name of a Hub cache"
        remedy = f"Who put them there knows. If they are the newest of the Hub: -e pin_{name}_revision={NEWEST}"
        pins.checks.append(Check("PIN.PERSON", str(lane["lane_id"]), WARN, found, f"{path} is known before launch", remedy))


def misfits(model: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[str]:
    """What a commit's files are, where the lane expects something else of them."""
    shards, sums = (model.get("expect") or {}).get("shards"), told["sha256"]
    if shards is not None and told["shards"] != shards:
        yield f"{told['shards']} shards, expected {shards}"
    expected = {**(model.get("sha256") or {}), **({"config.json": model["config_sha256"]} if model.get("config_sha256") else {})}
    if "config.json" not in sums and (model.get("config_sha256") or model.get("bad_sha256")):
        yield "config.json could not be read to be compared"
    for file, value in expected.items():
        if file in sums and sums[file] != value:
            yield f"{file} is {short(sums[file])}, expected {short(str(value))}"
    for file, value in sums.items():
        if any(value.startswith(str(bad)) for bad in model.get("bad_sha256") or []):
            yield f"{file} is {short(value)}, which is known to be bad"


def _weigh_image(
    pins: Pins, lane: Mapping[str, Any], wanted: Wanted, told: Mapping[str, Any], part: OpenPart | None, today: datetime.date
) -> None:
    image, path, who = lane["lane_image"] or {}, "lane_image.digest", str(lane["lane_id"])
    repository, pinned = str(image["repository"]), str(image.get("digest") or "")
    if not told:
        if image.get("ids"):
            pins.rows.append(
                Row("lane_image.ids", short(str(image["ids"][0])), "", "", "an image that no registry has, known by its ID")
            )
        elif part:
            _image_without_a_question(pins, lane, part)
        return
    if told["error"]:
        status = WARN if pinned and not wanted.tag and not wanted.all else FAIL
        pins.rows.append(Row(path, short(pinned) or OPEN, "", "", "could not be asked: see below"))
        remedy = f"{part.what}. Who could know: {who_knows(lane)}. A build of your own: docs/images.md" if part else ""
        pins.checks.append(Check("PIN.REGISTRY", who, status, told["error"], f"an answer about {repository}", remedy))
        return
    now, before = told["now"], told["pinned"]
    if before.get("error"):
        remedy = "Keep a copy while a Spark has it: playbooks/archive.yml" if "not there" in before["error"] else ""
        pins.checks.append(Check("PIN.REGISTRY", who, WARN, str(before["error"]), "the pinned image", remedy))
    if not now:
        pins.rows.append(Row(path, short(pinned), "", made(before.get("date"), today), f"{repository} at {told['source']}"))
        pins.notes += said_of(before)
        return
    pins.notes += said_of(now)
    said = f"tag {told['asked']} at {told['source']}, linux/{now['architecture']}, {human_bytes(now['bytes'])} packed"
    if pinned in (now["digest"], now["index"]):
        pins.rows.append(Row(path, short(pinned), "", made(now["date"], today), f"still {said}"))
        return
    if pinned:
        said += f"; the pin is of {day(before.get('date'))}" if not before.get("error") else "; the pinned one is gone there"
    pins.rows.append(Row(path, short(pinned) or OPEN, short(now["digest"]), made(now["date"], today), said))
    index = f", index {now['index']}" if now["index"] else ""
    comment = (
        f"on {today} by pin: tag {told['asked']} of {repository}, made {day(now['date'])}, linux/{now['architecture']}{index}, "
        f"ID {now['id']}{instead(pinned)}"
    )
    _give(pins, path, f"tag {told['asked']} of {repository}", now["digest"], comment, ("lane_image", "digest"))
    if wanted.tag and wanted.tag != image.get("tag"):
        _give(
            pins,
            "lane_image.tag",
            f"tag {told['asked']} of {repository}, by name",
            wanted.tag,
            f"on {today} by pin",
            ("lane_image", "tag"),
        )
        if image.get("vllm"):
            pins.notes.append(
                f"lane_image.vllm still says {image['vllm']}, of the tag that was: gate A compares it with the image."
            )


def _image_without_a_question(pins: Pins, lane: Mapping[str, Any], part: OpenPart) -> None:
    repository = str(lane["lane_image"]["repository"])
    if local(repository):
        told, remedy = (
            "a local build: no registry has it",
            (
                f"Who could know: {who_knows(lane)}. Build it, push it to a registry of yours and write lane_image_site: {{repository: …, digest: …}}, or "
                'name its ID: lane_image_site: {ids: ["sha256:…"]} (docs/images.md)'
            ),
        )
    else:
        told, remedy = "the lane names no tag", f"Choose one: -e pin_image_tag=TAG. Who could know: {who_knows(lane)}"
    pins.rows.append(Row("lane_image.digest", OPEN, "", "", told))
    pins.checks.append(
        Check(
            "PIN.PERSON",
            str(lane["lane_id"]),
            WARN,
            f"{repository}: {part.what}",
            "lane_image.digest is known before launch",
            remedy,
        )
    )


def said_of(image: Mapping[str, Any]) -> list[str]:
    """What the registry says of an image for itself, and what it can't know."""
    if not image.get("id"):
        return []
    told = [f"ENTRYPOINT {' '.join(image['entrypoint']) or 'none'}"]
    told += [f"{name} {value}" for name, value in {**image["versions"], **image["labels"]}.items()]
    return [
        f"The registry says of the image: {'; '.join(told[:12])}. Which Python packages it holds shows only once it is on a Spark: staging asks it, gate A compares."
    ]


def _weigh_file(pins: Pins, lane: Mapping[str, Any], path: str, part: OpenPart, hashed: Hashed, today: datetime.date) -> None:
    files, target = part.keys[0], part.keys[1]
    source = next(str(item["source"]) for item in lane[files] if str(item["target"]) == target)
    shown = f"{files}.{source.rpartition('/')[2]}"
    found = hashed(files, source)
    if found is None:
        pins.rows.append(Row(shown, OPEN, "", "", f"{source} is not on this machine"))
        remedy = f"Get it from {who_knows(lane)}, look at it, put it there and run this again."
        pins.checks.append(
            Check(
                "PIN.FILE",
                str(lane["lane_id"]),
                WARN,
                f"{source} is not here, and its author published no hash",
                "the file",
                remedy,
            )
        )
        return
    digest, changed = found
    pins.rows.append(
        Row(shown, OPEN, short(digest), made(changed, today), f"{source} as it lies here; nobody published its hash: look at it")
    )
    comment = f"on {today} by pin: {source} as it lay on the controller, changed {day(changed)}"
    _give(pins, path, f"{source} on this machine", digest, comment, part.keys)


def _give(pins: Pins, path: str, asked: str, value: str, comment: str, keys: Sequence[str]) -> None:
    pins.settings.append(Setting(keys[0], tuple(keys[1:]), value, comment))
    pins.given[f"{path} ({asked})"] = value


def left_open(pins: Pins, unwritten: bool) -> list[str]:
    """What is open and stays so: what nobody could tell, and all where the site's file can't be written."""
    return [row.path for row in pins.rows if row.now == OPEN and (unwritten or not row.becomes)]


def short(value: str) -> str:
    """A commit, digest or hash for a table: enough to know it again."""
    head, colon, digits = value.rpartition(":")
    return f"{head}{colon}{digits[:12]}…" if len(digits) > 16 else value


def day(date: object) -> str:
    return str(date)[:10] if date else "unknown"


def made(date: object, today: datetime.date) -> str:
    """A day and how long ago it was; empty where nobody tells."""
    try:
        then = datetime.date.fromisoformat(str(date)[:10])
    except ValueError:
        return "not told"
    days = (today - then).days
    return f"{then} ({plural(days, 'day') if days else 'today'})" if days >= 0 else str(then)


def plural(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def instead(pinned: str) -> str:
    return f"; before: {pinned}" if pinned else ""


def table(rows: Sequence[Row]) -> list[str]:
    """The pins for a person."""
    head = ("pin", "is", "becomes", "made (ago)", "what was said")
    return columns(
        [head, *((row.path, row.now, row.becomes or ("" if row.now == OPEN else "stays"), row.made, row.told) for row in rows)],
        width=WIDTH,
    )


def closing(result: Mapping[str, Any], file: Mapping[str, Any], wanted: Wanted, confirmed: bool) -> list[str]:
    """What came of it, and what to type next. result: the pins. file: what lane_pin did, as far as it ran."""
    asked = {
        "pin_model_revision": wanted.model,
        "pin_drafter_revision": wanted.drafter,
        "pin_image_tag": wanted.tag,
        "pin_architecture": wanted.architecture,
    }
    same = "".join(f" -e {name}={value}" for name, value in asked.items() if value) + (" -e pin_all=true" if wanted.all else "")
    lines = []
    if file.get("written"):
        lines.append(
            f"Written into {result['shown']}." + (f" What it held before: {file['backup']}" if file.get("backup") else "")
        )
        lines.append("Judge it: playbooks/preflight.yml -e preflight_needs=launch")
    elif result["given"] and not confirmed:
        lines.append(f"Nothing was written. Write it into {result['shown']}: playbooks/pin.yml -e pin_confirm=true{same}")
    elif not result["given"] and not result["open"]:
        lines.append(
            "Nothing to pin: the lane leaves nothing open."
            if not wanted.all
            else "Nothing to pin: nothing moved, and nothing is open."
        )
        if not wanted.all:
            lines.append("See whether a pin moved: playbooks/pin.yml -e pin_all=true")
    if result["open"]:
        lines.append(f"Still open: {', '.join(result['open'])}")
    return lines
