"""A model staged on four nodes through faults: it ends bit-identical everywhere, and no fault is called a success.

It needs `script/sandbox up --nodes 4 --light` (any nodes do, from four on), and takes some minutes.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, Fleet, Outcome, shown

pytestmark = pytest.mark.slow
PATH = "/var/lib/sparklanes/models/faults"
SHARDS, SHARD = 16, 4 << 20


def nodes() -> dict[str, str]:
    """Node → address on the fabric."""
    data = yaml.safe_load((ROOT / "inventory" / "sandbox" / "10-sandbox.yml").read_text(encoding="utf-8"))
    hosts = data["all"]["children"]["sparks"]["hosts"]
    return {name: values["sandbox_fabric_ip"] for name, values in hosts.items()}


@pytest.fixture
def model() -> tuple[dict[str, str], dict[str, object]]:
    """(file → sha256, the model as the role takes it), published on the sandbox's Hub."""
    folder = ROOT / ".sandbox" / "hub" / "sparklanes" / "faults"
    folder.mkdir(parents=True, exist_ok=True)
    sums = {}
    for number in range(SHARDS):
        header = json.dumps({f"t{number}": {"dtype": "U8", "shape": [SHARD], "data_offsets": [0, SHARD]}}).encode()
        data = len(header).to_bytes(8, "little") + header + os.urandom(SHARD)
        (folder / f"model-{number:02}.safetensors").write_bytes(data)
        sums[f"model-{number:02}.safetensors"] = hashlib.sha256(data).hexdigest()
    command = [sys.executable, "sandbox/hub.py", "--root", str(folder.parents[1]), "--print-revision", "sparklanes/faults"]
    revision = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    return sums, {"repo": "sparklanes/faults", "revision": revision, "path": PATH}


def test_a_chain_through_faults(model: tuple[dict[str, str], dict[str, object]]) -> None:
    os.environ.setdefault("ANSIBLE_CONFIG", str(ROOT / "ansible.cfg"))
    fleet, there = Fleet(), nodes()
    assert len(there) >= 4, f"{len(there)} nodes are up: script/sandbox up --nodes 4 --light"
    sums, asked = model
    first, second, third, fourth = list(there)[:4]
    more = {"model_weights_model": asked, "model_weights_drafter": {}, "model_weights_mounts": [], "model_weights_rate_mib": 2}
    more |= {"model_weights_poll_seconds": 2, "model_weights_patience_seconds": 10}
    for node in there:
        fleet.on(node, f"rm -rf {PATH} /var/lib/sparklanes/staged/faults-* {Path(PATH).parent}/.faults.incoming")
    run = fleet.start("tests/e2e/weights.yml", "-e", json.dumps(more))
    said = shown(run, f"{fourth}  model: fetch")
    time.sleep(3)
    drop = f"-s {there[third]} -j DROP"
    fleet.on(fourth, f"iptables -I INPUT {drop}")
    try:
        fleet.on(second, "systemctl kill --signal=KILL sparklanes-job-lend")
        fleet.on(third, "systemctl kill --signal=KILL sparklanes-job-stage")
        said += run.stdout.read()
        run.wait(timeout=300)
        done = Outcome(run.returncode, said)
    finally:
        fleet.on(fourth, f"iptables -D INPUT {drop}")
    done.failed(f"{third}: model in {PATH} lacks", f"{first}: complete", f"{second}: complete", f"{fourth}: complete")
    # Read again, with what was killed started anew.
    fleet.play("tests/e2e/weights.yml", "-e", json.dumps({**more, "model_weights_rate_mib": 0})).ok()
    for node in there:
        told = fleet.on(node, f"cd {PATH} && sha256sum *")
        assert dict(reversed(line.split()) for line in told.splitlines()) == sums, node
        assert fleet.on(node, f"ls -A {Path(PATH).parent} | grep faults") == "faults"
        assert fleet.on(node, "systemctl is-active sparklanes-job-lend", check=False) != "active"
    again = fleet.play("tests/e2e/weights.yml", "-e", json.dumps(more)).ok()
    assert again.changed == 0
