# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which models stand complete on a Spark, by a quick look, and what speaks against it: marker, sizes, headers, guards."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check
from ansible.module_utils.sparklanes.common.disk import free_bytes
from ansible.module_utils.sparklanes.common.sizes import human_bytes
from ansible.module_utils.sparklanes.docker.inside import strays
from ansible.module_utils.sparklanes.host.mounts import Mount, where
from ansible.module_utils.sparklanes.weights import hub_cache
from ansible.module_utils.sparklanes.weights.folder import Assessment, ModelStore, Seen, assess, listing, look
from ansible.module_utils.sparklanes.weights.gist import gist
from ansible.module_utils.sparklanes.weights.home import Home, LeadsAway
from ansible.module_utils.sparklanes.weights.model import Manifest, Model, Record
from ansible.module_utils.sparklanes.weights.safetensors import SUFFIX, Account, scan
from ansible.module_utils.sparklanes.weights.scales import choose, judge
from ansible.module_utils.sparklanes.weights.scales import read as read_scale

# What reading or fetching files doesn't mend.
FOR_A_PERSON = ("WEIGHTS.GUARD", "WEIGHTS.EXTRA", "WEIGHTS.SCALE", "WEIGHTS.LINK", "WEIGHTS.VISIBLE")
REFETCH = "Run site.yml -e model_weights_repair=true to fetch it anew"
COMPLETE = "Have its owner complete it (`hf download`), or run site.yml, which fetches what no whole cache has"
MEND = "Nothing is written into a Hub cache: have its owner remove that file and `hf download` it again, or set model_weights_use_hub_cache: false"


def content_checks(model: Model, host: str, assessment: Assessment, manifest: Manifest, seen: Mapping[str, Seen]) -> list[Check]:
    """L1: each file is there in its size."""
    checks = [
        Check(
            "WEIGHTS.SIZE",
            host,
            FAIL,
            f"{model.path}/{name}: {seen[name].size:,} bytes",
            f"{manifest.files[name].size:,} bytes",
            mended(model),
        )
        for name in assessment.wrong_size
    ]
    if assessment.missing:
        size = sum(manifest.files[name].size for name in assessment.missing)
        found = f"{model.path}: {len(assessment.missing)} of {len(manifest.files)} files missing ({human_bytes(size)}): "
        found += few(assessment.missing)
        checks.append(
            Check(
                "WEIGHTS.MISSING",
                host,
                FAIL,
                found,
                "all files of the manifest",
                COMPLETE if model.in_place else "Run site.yml to stage them",
            )
        )
    if assessment.unread:
        size = sum(manifest.files[name].size for name in assessment.unread)
        found = f"{model.path}: {len(assessment.unread)} files ({human_bytes(size)}) not read since they changed: "
        found += few(assessment.unread)
        checks.append(Check("WEIGHTS.UNREAD", host, FAIL, found, "read and verified", "Run site.yml: it reads them"))
    shards = [name for name in assessment.extra if name.endswith(SUFFIX)]
    others = [name for name in assessment.extra if not name.endswith(SUFFIX)]
    if shards:
        found = f"{model.path}: {few(shards)}, in no manifest"
        remedy = "Move it elsewhere: an engine may load every shard it finds"
        checks.append(Check("WEIGHTS.EXTRA", host, FAIL, found, "no shards but the model's", remedy))
    if others:
        found = f"{model.path}: {few(others)}, in no manifest"
        remedy = "If the lane needs it, declare it as an extra (lane_extras); else remove it"
        checks.append(Check("WEIGHTS.EXTRA", host, WARN, found, "only the model's files", remedy))
    return checks


def unmade_checks(model: Model, host: str, names: Sequence[str]) -> list[Check]:
    """Of a folder of which no list is known: links that lead to no file."""
    if not names:
        return []
    found = f"{model.path}: {len(names)} links lead nowhere: {few(names)}"
    remedy = "Complete the download there, or remove what is left of it; then run site.yml"
    return [Check("WEIGHTS.MISSING", host, FAIL, found, "all files of the model", remedy)]


def visible_checks(model: Model, host: str, names: Sequence[str]) -> list[Check]:
    """Whether the rank's container opens each of these files, and the very file that lies here, which is what is verified."""
    if not model.mounts:
        return []
    expected = "each opens, and is the file that is verified"
    place = hub_cache.place_inside(model.path, model.mounts)
    if not place:
        remedy = (
            f"Set lane_{model.name}.path, which is what a rank mounts; where no rank is to serve it, model_weights_mounts: []"
        )
        return [Check("WEIGHTS.VISIBLE", host, FAIL, f"{model.path} is mounted into no rank", expected, remedy)]
    wrong = strays(model.mounts, model.path, place, names)
    if not wrong:
        return []
    first = next(iter(wrong))
    found = f"{model.path}: {len(wrong)} of {len(names)} files do not open in the container: {few(list(wrong))}. {first}: {wrong[first]}"
    real = os.path.realpath(model.path)
    remedy = (
        f"Name the snapshot itself, so that its repository is mounted: lane_{model.name}_site: {{path: {real}}}"
        if real != model.path and hub_cache.snapshot(real)
        else "Put the files themselves there (cp -L)"
    )
    return [Check("WEIGHTS.VISIBLE", host, FAIL, found, expected, remedy)]


def account_checks(model: Model, host: str, account: Account) -> list[Check]:
    """L2: headers and index agree with each other and with the lane's numbers."""
    checks = [
        Check("WEIGHTS.HEADER", host, FAIL, f"{model.path}/{problem.file}: {problem.found}", problem.expected, mended(model))
        for problem in account.problems
    ]
    for note in account.notes:
        checks.append(Check("WEIGHTS.INDEX", host, WARN, f"{model.path}/{note.file}: {note.found}", note.expected))
    guards = (
        ("shards", account.shards, model.shards),
        ("tensors", account.tensors, model.tensors),
        ("bytes", account.file_bytes, model.bytes),
    )
    for what, found, expected in guards:
        if expected and found != expected:
            remedy = f"Is this the lane's model? If so, correct lane_{model.name}.expect.{what}"
            checks.append(Check("WEIGHTS.GUARD", host, FAIL, f"{model.path}: {found:,} {what}", f"{expected:,}", remedy))
    for pattern, expected in sorted(model.names.items()):
        matches = re.compile(pattern).search
        found = sum(1 for name in account.where if matches(name))
        if found != expected:
            remedy = f"Is this the lane's model? If so, correct lane_{model.name}.expect.names"
            what = f"{model.path}: {found:,} tensors like {pattern}"
            checks.append(Check("WEIGHTS.GUARD", host, FAIL, what, f"{expected:,}", remedy))
    return checks


def family_checks(model: Model, host: str, config: Mapping[str, Any]) -> list[Check]:
    """What config.json says it is. A dotted key goes into it; of a list the first element counts."""
    checks = []
    for key, expected in sorted(model.family.items()):
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        value = value[0] if isinstance(value, list) and value else value
        if str(value) != expected:
            found = f"{model.path}/config.json: {key} is {'not there' if value is None else value}"
            remedy = f"Is this the lane's checkpoint? If so, correct lane_{model.name}.expect.family"
            checks.append(Check("WEIGHTS.GUARD", host, FAIL, found, expected, remedy))
    return checks


def weights_alone(config: Mapping[str, Any]) -> bool:
    """Only weights are quantized: an engine never reads the scales of activations that may lie there."""
    told = config.get("quantization_config") or {}
    return "A16" in str(told.get("quant_algo") or "")


def scale_checks(model: Model, host: str, account: Account, weights_only: bool = False) -> list[Check]:
    """A sample of quantization scales. Their bytes are read; see scales.py for what can't be."""
    checks = []
    inputs = [] if weights_only else choose(account.input_scales, model.scale_samples)
    for scale in [*choose(account.scales, model.scale_samples), *inputs]:
        wrong = judge(scale.dtype, read_scale(Path(model.path), scale), alike=scale not in inputs)
        if wrong:
            found = f"{model.path}/{scale.file}: {scale.name}: {wrong}"
            remedy = (
                f"The quantizer went wrong: take another checkpoint. If it is meant so: lane_{model.name}.expect.scale_samples: 0"
            )
            checks.append(Check("WEIGHTS.SCALE", host, FAIL, found, "positive, finite, not all the same", remedy))
    return checks[:5]


def digest_checks(model: Model, host: str, records: Mapping[str, Record]) -> list[Check]:
    """The lane's own digests against what was read."""
    wanted = dict(model.sha256)
    if model.config_sha256:
        wanted["config.json"] = model.config_sha256
    checks = []
    for name, digest in sorted(wanted.items()):
        found = records[name].sha256 if name in records else "no such file"
        if found != digest:
            remedy = f"Is this the lane's model and revision? If so, correct the digest in lane_{model.name}"
            checks.append(
                Check("WEIGHTS.GUARD", host, FAIL, f"{model.path}/{name}: sha256 {found[:16]}", f"{digest[:16]}…", remedy)
            )
    for name, record in sorted(records.items()):
        if any(record.sha256.startswith(prefix) for prefix in model.bad_sha256):
            found = f"{model.path}/{name}: sha256 {record.sha256[:16]}…, which the lane knows as bad"
            remedy = f"Set lane_{model.name}.revision to one that has another {name}"
            checks.append(Check("WEIGHTS.GUARD", host, FAIL, found, "another file", remedy))
    return checks


def rot(model: Model, host: str, name: str, found: str, expected: str) -> Check:
    """A file whose content is not what it must be."""
    return Check("WEIGHTS.CONTENT", host, FAIL, f"{model.path}/{name}: hash {found[:16]}…", f"{expected[:16]}…", mended(model))


def mended(model: Model) -> str:
    """What to do about a file that is not what it must be."""
    return MEND if model.in_place else REFETCH


def few(names: Sequence[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


@dataclass
class Standing:
    """One model on one Spark, by a quick look."""

    model: Model
    staged: bool
    checks: list[Check]
    files: int = 0
    bytes: int = 0
    verified_bytes: int = 0
    unread_bytes: int = 0
    missing_bytes: int | None = None  # None: no manifest yet that could say
    manifest_sha256: str = ""
    account: Account | None = None
    lacking: list[str] = field(default_factory=list)
    mount: Mount | None = None
    gist: Mapping[str, Any] | None = None  # None: not complete, so nobody read it

    @property
    def fixable(self) -> bool:
        """Whether reading or fetching files could help. Guards and stray files are for a person."""
        return not self.staged and not any(check.status == FAIL and check.id in FOR_A_PERSON for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.model.name,
            "path": self.model.path,
            "repo": self.model.repo,
            "revision": self.model.revision,
            "staged": self.staged,
            "files": self.files,
            "bytes": self.bytes,
            "verified_bytes": self.verified_bytes,
            "unread_bytes": self.unread_bytes,
            "missing_bytes": self.missing_bytes,
            "manifest_sha256": self.manifest_sha256,
            "shards": self.account.shards if self.account else 0,
            "tensors": self.account.tensors if self.account else 0,
            "lacking": len(self.lacking),
            "lacks": few(self.lacking),
            "free_bytes": free_bytes(self.model.path),
            "filesystem": self.mount.kind if self.mount else "",
            "server": self.mount.server if self.mount else "",
            "gist": self.gist,
        }


def standing(model: Model, host: str, store: ModelStore, manifest: Manifest | None = None) -> Standing:
    """Look at a model without reading its data: marker, stat, headers. Seconds for 400 GB."""
    try:
        return _standing(model, host, store, manifest)
    except LeadsAway as error:
        expected = "files of the model, or links to such in one models--… folder of a Hub cache"
        return Standing(
            model, False, [Check("WEIGHTS.LINK", host, FAIL, error.found, expected, error.remedy)], mount=where(model.path)
        )


def _standing(model: Model, host: str, store: ModelStore, manifest: Manifest | None) -> Standing:
    folder = Path(model.path)
    saved = manifest or store.manifest()
    if saved is None or not saved.of(model):
        found = f"{model.path}: nothing is known of it" if saved is None else f"{saved.repo}@{saved.revision[:12]}"
        want = f"{model.repo}@{model.revision[:12]}" if model.repo else "verified files"
        check = Check("WEIGHTS.REVISION", host, FAIL, found, want, "Run site.yml to stage it")
        there, dead = listing(folder)
        known = [*unmade_checks(model, host, dead), *visible_checks(model, host, list(there))]
        return Standing(model, False, [check, *known], mount=where(model.path))
    records, seen = store.records(), look(folder)
    assessment = assess(saved, records, seen)
    checks = content_checks(model, host, assessment, saved, seen)
    checks += visible_checks(model, host, [name for name in saved.files if name in seen])
    size = {name: content.size for name, content in saved.files.items()}
    result = Standing(
        model,
        False,
        checks,
        files=len(saved.files),
        bytes=saved.bytes,
        verified_bytes=sum(size[name] for name in assessment.verified),
        unread_bytes=sum(size[name] for name in assessment.unread),
        missing_bytes=sum(size[name] for name in assessment.to_fetch),
        manifest_sha256=saved.digest,
        lacking=assessment.to_fetch + assessment.unread,
        mount=where(model.path),
    )
    if assessment.complete:
        marker = store.staged()
        if marker is None or not marker.of(model):
            checks.append(Check("WEIGHTS.MARKER", host, FAIL, f"{model.path}: staging did not end", "a marker", "Run site.yml"))
        result.account = scan(folder, saved.files)
        checks += account_checks(model, host, result.account) + digest_checks(model, host, records)
        with Home(folder) as home:
            config = home.json("config.json") or {}
            quantizer = home.json("hf_quant_config.json") if home.has("hf_quant_config.json") else None
        result.gist = gist(config, quantizer, result.account.where)
        checks += family_checks(model, host, config)
        checks += scale_checks(model, host, result.account, weights_alone(result.gist["config"]))
        result.staged = not any(check.status == FAIL for check in checks)
        if result.staged:
            found = f"{len(saved.files)} files, {human_bytes(saved.bytes)}, {result.account.tensors:,} tensors"
            checks.append(Check("WEIGHTS.STAGED", host, PASS, f"{model.path}: {found}"))
    return result
