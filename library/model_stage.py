#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Have models complete and verified on this Spark."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: model_stage
short_description: Have models complete and verified on this Spark
description:
  - Looks at models without reading their data (marker, sizes, mtimes, safetensors headers, the lane's guards).
    Where all is as it should be, that is all it does, in seconds for 400 GB.
  - Otherwise a detached job reads what is there, fetches what is not, verifies every file by its hash and writes
    a marker last. The module returns the job's name at once; C(long_job) follows it, C(job_status) shows it.
    A second call while it runs attaches to it.
  - Nothing but the model's own files is ever written into its folder.
options:
  models:
    description: The models. One call handles all of them.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: A word, such as V(model) or V(drafter).
        type: str
        required: true
      path:
        description: Its folder on this Spark.
        type: str
        required: true
      repo:
        description: Its name on the Hub, C(organisation/name).
        type: str
        default: ''
      revision:
        description: The commit, 40 hex digits. Needed for O(source=hub).
        type: str
        default: ''
      sha256:
        description: What files must hash to, by name, on top of what the source says.
        type: dict
        default: {}
      expect:
        description:
          - Guards; zero is not checked. C(shards), C(tensors) and C(bytes) (of all shards on disk), C(names) (pattern to
            number of tensors), C(family) (key of config.json to value), C(scale_samples) (how many scale tensors are looked at).
        type: dict
        default: {}
      config_sha256:
        description: What C(config.json) must hash to.
        type: str
        default: ''
      bad_sha256:
        description: Beginnings (8 digits or more) of hashes of files that are known to be bad.
        type: list
        elements: str
        default: []
      mounts:
        description: >-
          All that its rank mounts, C(source) and C(target) each. With it, each file must open in the rank's container, and be the one that lies
          at C(path).
        type: list
        elements: dict
        default: []
  state:
    description:
      - V(staged) starts the job where one is needed.
      - V(planned) never does, and does not fail over what is missing. It says what is there and what would be done.
    type: str
    choices: [staged, planned]
    default: staged
  source:
    description:
      - V(hub) downloads with the pinned client of the Hub.
      - V(mirror) downloads from a folder behind a plain web server, see O(mirror).
      - V(chain) takes the files from the Sparks before this one as soon as they are verified there, see O(chain)
        and C(model_lend).
      - V(directory) verifies what is already there, a plain folder or a mount, and uses it in place. A model whose path is a snapshot in a
        Hub cache is used in place whatever the source, as nothing is ever written into a cache.
    type: str
    choices: [hub, mirror, chain, directory]
    default: hub
  verify:
    description:
      - V(quick) trusts what was read and has kept size, mtime and ctime.
      - V(full) reads everything again. Only this finds what a disk does to a file silently.
    type: str
    choices: [quick, full]
    default: quick
  repair:
    description: Fetch a file anew whose content is bad. Otherwise the bad file is left for inspection and the job fails.
    type: bool
    default: true
  endpoint:
    description: The Hub, or a mirror that speaks its protocol.
    type: str
    default: https://huggingface.co
  token:
    description: For repositories that need one. Reaches the job through a pipe and is in no file.
    type: str
  token_over_http:
    description: Send O(token) to an O(endpoint) without TLS that is not this machine. Anybody on the way can read it.
    type: bool
    default: false
  hub_lock:
    description: >-
      Text of the lock of C(huggingface_hub), of which a virtual environment is made on the fetching Spark: each package with its version and
      the hashes of its files, as C(script/lock) writes it. Needed where O(source=hub) has to fetch.
    type: str
    default: ''
  hub_user:
    description:
      - The user as whom that client runs. It can write to a folder beside the model alone; root takes over what comes, before it is hashed.
      - Empty is whoever runs the module.
    type: str
    default: sparklanes-hub
  pip_args:
    description: Further arguments of C(pip install) for it, for instance an index of the site. A password in them is refused, see O(pip_env).
    type: list
    elements: str
    default: []
  pip_env:
    description: Variables of pip (C(PIP_INDEX_URL)) that hold a password. They reach the job through a pipe and are in no file.
    type: dict
    default: {}
  hub_env:
    description: >-
      Variables of the Hub's client that beat ours and those of a login on the Spark: its limits of memory and connections
      (C(HF_XET_…)) and of time (C(HF_HUB_DOWNLOAD_TIMEOUT)). Others are refused.
    type: dict
    default: {}
  chain:
    description: Needed for O(source=chain).
    type: dict
    suboptions:
      peers:
        description:
          - The Sparks before this one, the nearest first, each with C(name) and C(url) (C(rsync://USER@ADDRESS:PORT)).
          - The nearest that lives and keeps up is waited for; a dead, silent or slow one is passed over.
        type: list
        elements: dict
        required: true
      secret:
        description: The password for this staging. It also proves the offers of the peers.
        type: str
        required: true
      patience:
        description: Seconds that a peer may have nothing for this Spark while others have, before it is passed over.
        type: float
        default: 30
  mirror:
    description: Needed for O(source=mirror).
    type: dict
    suboptions:
      urls:
        description:
          - The folder of each model's files, by model name. It holds a list of them, C(manifest.json) as it lies in O(staged_dir),
            or C(SHA256SUMS); else the model's C(sha256) is the list.
        type: dict
        required: true
      lists:
        description: What that list must hash to, by model name.
        type: dict
        default: {}
  also:
    description: What else is to come onto this Spark's disks (C(what), C(path), C(bytes)), so that all of it is known to fit.
    type: list
    elements: dict
    default: []
  workers:
    description: How many files are fetched at once.
    type: int
    default: 8
  rate_mib:
    description: Limit in MiB/s of reading and of taking from a peer. V(0) is none. The Hub's client knows no limit.
    type: int
    default: 0
  verify_workers:
    description: How many files that are there are read at once.
    type: int
    default: 2
  verify_rate_mib:
    description:
      - Limit in MiB/s of reading files that are there, beside O(rate_mib). V(0) is none. What arrives is hashed once it is there
        and has no limit of its own.
      - The default is what one core hashes. A Spark that was idle was powered off hard by hashing at full speed.
    type: int
    default: 1024
  serving_rate_mib:
    description: The limit while a rank or another GPU process runs on this Spark.
    type: int
    default: 256
  reserve_gib:
    description: Space on the disk that must stay free.
    type: int
    default: 10
  host:
    description: This Spark's name in messages.
    type: str
  staged_dir:
    description: Where manifests and markers lie.
    type: path
    default: /var/lib/sparklanes/staged
  venvs_dir:
    description: Where the client's virtual environment lies.
    type: path
    default: /var/lib/sparklanes/venvs
extends_documentation_fragment: [sparklanes, sparklanes.change, sparklanes.jobs]
attributes:
  check_mode:
    details: Returns the plan. Asks no network and starts nothing.
  diff_mode:
    details: Shows the state of each model before, and after the job has ended well.
  idempotent:
    details: >-
      Where all is staged, nothing is started. With O(verify=full) a job reads everything at each run; it reports a change,
      through C(long_job), only where it fetched or removed something.
"""

EXAMPLES = r"""
- name: The weights are complete
  long_job:
    module: model_stage
    args:
      host: "{{ inventory_hostname }}"
      models:
        - name: model
          path: /var/lib/sparklanes/models/tiny
          repo: sparklanes/tiny
          revision: 0123456789012345678901234567890123456789

- name: What each Spark lacks
  model_stage:
    state: planned
    models:
      - {name: model, path: /var/lib/sparklanes/models/tiny}
"""

RETURN = r"""
staged:
  description: Whether all models are complete and verified.
  type: bool
  returned: always
models:
  description:
    - Each model with its numbers (files, bytes, verified_bytes, unread_bytes, missing_bytes, shards, tensors) and
      C(lacking) and C(lacks) (how many files, and which), C(free_bytes), C(filesystem) and C(server) of its disk, and
      C(manifest_sha256), one hash of all its contents that is equal on two Sparks exactly where their files are, and C(code), the
      sha256 of each of its *.py, by name, and C(gist), what traps ask of its C(config) and its C(tensors) (null while it is not complete).
  type: list
  elements: dict
  returned: always
checks:
  description: What is not as it should be, each with host, found, expected and next step.
  type: list
  elements: dict
  returned: always
plan:
  description: What would be done, in sentences.
  type: list
  elements: str
  returned: always
actions:
  description: What was done, in sentences; in check mode and when planned, why something would be done.
  type: list
  elements: str
  returned: always
job:
  description: The job that was started or attached to.
  type: str
  returned: when there is one
job_run:
  description: Which run of that job it is, as option C(run) of C(job_status) wants it.
  type: str
  returned: when there is a job
attached:
  description: Whether the job ran already.
  type: bool
  returned: when there is a job
"""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common.checks import FAIL, sentence
from ansible.module_utils.sparklanes.common.disk import free_bytes
from ansible.module_utils.sparklanes.common.secrets import secret_value
from ansible.module_utils.sparklanes.common.sizes import GIB, MIB
from ansible.module_utils.sparklanes.gpu import occupied
from ansible.module_utils.sparklanes.jobs.runner import Jobs, ask_systemd
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.weights import hub_client, pip
from ansible.module_utils.sparklanes.weights.folder import ModelStore, allocated, incoming_of
from ansible.module_utils.sparklanes.weights.hub import REPO, SITE_VARIABLES, HubError, token_refusal
from ansible.module_utils.sparklanes.weights.model import Model, StagingError
from ansible.module_utils.sparklanes.weights.pace import rate_limit, tighter
from ansible.module_utils.sparklanes.weights.plan import plan, speed_of
from ansible.module_utils.sparklanes.weights.room import check_room
from ansible.module_utils.sparklanes.weights.sources import unpinned
from ansible.module_utils.sparklanes.weights.stage import JOB, network_settings, stage
from ansible.module_utils.sparklanes.weights.standing import Standing, standing

OPTIONS: dict[str, Any] = {
    "models": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "path": {"type": "str", "required": True},
            "repo": {"type": "str", "default": ""},
            "revision": {"type": "str", "default": ""},
            "sha256": {"type": "dict", "default": {}},
            "expect": {"type": "dict", "default": {}},
            "config_sha256": {"type": "str", "default": ""},
            "bad_sha256": {"type": "list", "elements": "str", "default": []},
            "mounts": {"type": "list", "elements": "dict", "default": []},
        },
    },
    "state": {"type": "str", "choices": ["staged", "planned"], "default": "staged"},
    "source": {"type": "str", "choices": ["hub", "mirror", "chain", "directory"], "default": "hub"},
    "verify": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
    "repair": {"type": "bool", "default": True},
    "endpoint": {"type": "str", "default": "https://huggingface.co"},
    "token": {"type": "str", "no_log": True},
    "token_over_http": {"type": "bool", "default": False, "no_log": False},
    "hub_lock": {"type": "str", "default": ""},
    "hub_user": {"type": "str", "default": "sparklanes-hub"},
    "pip_args": {"type": "list", "elements": "str", "default": []},
    "pip_env": {"type": "dict", "default": {}, "no_log": True},
    "hub_env": {"type": "dict", "default": {}},
    "chain": {
        "type": "dict",
        "options": {
            "peers": {"type": "list", "elements": "dict", "required": True},
            "secret": {"type": "str", "required": True, "no_log": True},
            "patience": {"type": "float", "default": 30},
        },
    },
    "mirror": {
        "type": "dict",
        "options": {"urls": {"type": "dict", "required": True}, "lists": {"type": "dict", "default": {}}},
    },
    "also": {"type": "list", "elements": "dict", "default": []},
    "workers": {"type": "int", "default": 8},
    "rate_mib": {"type": "int", "default": 0},
    "verify_workers": {"type": "int", "default": 2},
    "verify_rate_mib": {"type": "int", "default": 1024},
    "serving_rate_mib": {"type": "int", "default": 256},
    "reserve_gib": {"type": "int", "default": 10},
    "host": {"type": "str"},
    "staged_dir": {"type": "path", "default": "/var/lib/sparklanes/staged"},
    "jobs_dir": {"type": "path", "default": "/var/lib/sparklanes/jobs"},
    "venvs_dir": {"type": "path", "default": "/var/lib/sparklanes/venvs"},
}


NEEDED = [("source", "chain", ["chain"]), ("source", "mirror", ["mirror"])]


def same_work(wanted: Mapping[str, Any], running: Mapping[str, Any]) -> bool:
    """Whether a running job does what is wanted. Where it takes the files from is its own affair."""
    return all(wanted[key] == running.get(key) for key in ("models", "verify"))


class Stage:
    """One call of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.host = self.params["host"] or platform.node()
        self.models = [Model.from_dict(model) for model in self.params["models"]]
        names = [model.name for model in self.models]
        if len(set(names)) != len(names) or len({model.path for model in self.models}) != len(names):
            raise StagingError("two models have the same name or the same path")
        self.refuse_secrets()
        for name in ("workers", "verify_workers"):
            if self.params[name] < 1:
                raise StagingError(f"{name} is {self.params[name]}; at least 1 is needed")
        self.staged_dir = Path(self.params["staged_dir"])
        self.jobs = Jobs(ask_systemd, Path(self.params["jobs_dir"]))

    def refuse_secrets(self) -> None:
        """What would put a secret where others read it: on a wire, in the job's file, in the words of a command."""
        source, mirror = self.params["source"], (self.params["mirror"] or {}).get("urls") or {}
        if source == "hub" and self.params["token"] and not self.params["token_over_http"]:
            refusal = token_refusal(self.params["endpoint"])
            if refusal:
                raise StagingError(refusal)
        for what, address in [
            ("endpoint", self.params["endpoint"]),
            *((f"mirror.urls.{name}", url) for name, url in mirror.items()),
        ]:
            if secret_value(str(address)):
                raise StagingError(
                    f"{what} holds a password, which would stand in a file of the job: give the address without it"
                )
        if any(secret_value(argument) for argument in self.params["pip_args"]):
            raise StagingError("pip_args holds a password, which would stand in a file of the job: give it as pip_env")
        odd = [name for name in self.params["pip_env"] if not pip.VARIABLE.fullmatch(str(name))]
        if odd:
            raise StagingError(f"pip_env has {', '.join(map(str, odd))}; expected variables of pip, such as PIP_INDEX_URL")
        odd = [name for name in self.params["hub_env"] if name not in SITE_VARIABLES]
        if odd:
            raise StagingError(f"hub_env has {', '.join(map(str, odd))}; expected one of {', '.join(sorted(SITE_VARIABLES))}")

    def limits(self) -> tuple[int, int]:
        """Bytes a second of all, and of reading what is there."""
        limit = rate_limit(bool(occupied.look().holder()), self.params["rate_mib"], self.params["serving_rate_mib"])
        return limit * MIB, tighter(limit, self.params["verify_rate_mib"]) * MIB

    def look(self) -> list[Standing]:
        return [standing(model, self.host, ModelStore(self.staged_dir, model.path)) for model in self.models]

    def result(self, standings: list[Standing]) -> dict[str, Any]:
        kind, mirror = self.params["source"], self.params["mirror"] or {}
        checks = [check for one in standings for check in one.checks]
        for model in self.models if kind == "mirror" else ():
            checks += unpinned(
                model, self.host, *(str((mirror.get(key) or {}).get(model.name) or "") for key in ("urls", "lists"))
            )
        source = {"hub": self.params["endpoint"], "chain": "the Sparks before it", "mirror": "the mirror"}.get(kind, "its folder")
        limit, verify_limit = self.limits()
        return {
            "changed": False,
            "staged": all(one.staged for one in standings),
            "models": [{**one.to_dict(), "code": code_of(ModelStore(self.staged_dir, one.model.path))} for one in standings],
            "checks": [check.to_dict() for check in checks],
            "plan": plan(standings, source, free_bytes, speed_of(self.staged_dir, kind, limit, verify_limit)),
            "actions": [],
        }

    def __call__(self) -> dict[str, Any]:
        running = self.jobs.status(JOB).running
        standings = self.look()
        result = self.result(standings)
        if self.params["state"] == "planned":
            return {**result, "actions": lacking(standings), "running": running}
        if result["staged"] and self.params["verify"] == "quick":
            return result
        hopeless = [
            sentence(check)
            for one in standings
            if not one.staged and not one.fixable
            for check in one.checks
            if check.status == FAIL
        ]
        if hopeless and not running:
            raise StagingError("; ".join(hopeless))
        self.refuse_early(standings)
        if self.module.check_mode:
            diff = difference(standings)
            return {**result, "changed": not result["staged"], "actions": lacking(standings), "diff": diff}
        return {**result, **self.start(standings), "diff": difference(standings)}

    def refuse_early(self, standings: list[Standing]) -> None:
        """What can be known to fail is said now, not by a job."""
        source = self.params["source"]
        for one in standings:
            if source == "directory" or one.model.in_place:
                if not Path(one.model.path).is_dir():
                    raise StagingError(
                        f"{self.host}: {one.model.path} is no folder. Put {one.model.name} there, or let it be fetched"
                        " (model_weights_source: hub)"
                    )
                continue
            if source == "hub":
                hub_client.read(self.params["hub_lock"])
                one.model.needs_commit()
                if not REPO.fullmatch(one.model.repo):
                    raise StagingError(f"{one.model.name}: {one.model.repo!r} is no repository; it is like org/name")
        if source != "directory" and not self.jobs.status(JOB).running:
            needs = [
                (one.model, max(0, (one.missing_bytes or 0) - arrived(one.model.path)))
                for one in standings
                if not one.model.in_place
            ]
            check_room(self.host, needs, self.params["reserve_gib"] * GIB, self.params["also"])

    def start(self, standings: list[Standing]) -> dict[str, Any]:
        params = self.params
        chain = params["chain"] or {}
        limit, verify_limit = self.limits()
        args = {
            "host": self.host,
            "models": [model.to_dict() for model in self.models],
            "was_staged": all(one.staged for one in standings),
            "source": params["source"],
            "verify": params["verify"],
            "repair": params["repair"],
            "workers": params["workers"],
            "rate": limit,
            "verify_workers": params["verify_workers"],
            "verify_rate": verify_limit,
            "reserve": params["reserve_gib"] * GIB,
            "staged_dir": str(self.staged_dir),
            "hub": {
                "endpoint": params["endpoint"],
                "lock": params["hub_lock"],
                "user": params["hub_user"],
                "pip_args": params["pip_args"],
                "venvs_dir": params["venvs_dir"],
            },
            "chain": {key: value for key, value in chain.items() if key != "secret"},
            "mirror": params["mirror"] or {},
            "also": params["also"],
        }
        secrets = network_settings(os.environ) if params["source"] in ("hub", "mirror") else {}
        if params["source"] == "hub":
            secrets |= {f"env:{name}": str(value) for name, value in {**params["pip_env"], **params["hub_env"]}.items()}
            if params["token"]:
                secrets["token"] = params["token"]
        if params["source"] == "chain":
            secrets["chain_secret"] = chain["secret"]
        writes = [self.staged_dir, params["venvs_dir"]]
        if params["source"] != "directory":
            # which holds the model's folder too
            writes += [incoming_of(model.path).parent for model in self.models if not model.in_place]
        began = self.jobs.start(JOB, stage, args, secrets, writes=writes, same=lambda running: same_work(args, running))
        name = self.jobs.unit(JOB)
        return {
            "changed": True,
            **began.told(),
            "actions": [f"{'started' if began else 'attached to'} job {JOB} ({name})"],
        }


def code_of(store: ModelStore) -> dict[str, str]:
    """The *.py of a model, which an engine may run: name → sha256 as it was read or is listed, empty where neither says it."""
    manifest, records = store.manifest(), store.records()
    listed = {name: content.sha256 for name, content in manifest.files.items()} if manifest else {}
    read = {name: record.sha256 for name, record in records.items()}
    return {name: read.get(name) or listed.get(name, "") for name in sorted({*listed, *read}) if name.endswith(".py")}


def arrived(path: str) -> int:
    """Bytes that an interrupted run has brought already."""
    return sum(allocated(incoming_of(path)))


def lacking(standings: list[Standing]) -> list[str]:
    return [sentence(check) for one in standings for check in one.checks if check.status == FAIL]


def difference(standings: list[Standing]) -> dict[str, str]:
    before = "".join(f"{one.model.name} {one.model.path}: {'complete' if one.staged else 'incomplete'}\n" for one in standings)
    return {"before": before, "after": before.replace(": incomplete", ": complete")}


def main() -> None:
    module = AnsibleModule(OPTIONS, supports_check_mode=True, required_if=NEEDED)
    try:
        result = Stage(module)()
    except (StagingError, JobError, HubError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'the disk'}: {error.strerror}. Check the disk and its mount")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
