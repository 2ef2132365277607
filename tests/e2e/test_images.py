"""The engine image between Sparks: lent over the fabric, archived, restored, and what nobody needs removed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from conftest import NODES, ROOT, Fleet

PROGRAM = "/usr/local/bin/docker-registry"

pytestmark = pytest.mark.slow


def local_images(fleet: Fleet, node: str) -> list[str]:
    # An image with several names is listed under each.
    return sorted(set(fleet.on(node, "docker image ls --all --quiet --no-trunc").split()))


def take_away(fleet: Fleet, node: str) -> None:
    fleet.on(
        node, "docker image ls --all --quiet | xargs --no-run-if-empty docker image rm --force; rm -rf /var/lib/sparklanes/images"
    )
    assert local_images(fleet, node) == []


@pytest.fixture(scope="module")
def stopped(fleet: Fleet) -> Iterator[Fleet]:
    """No rank runs, and each node has the registry's program, which the sandbox itself uses."""
    fleet.play("playbooks/stop.yml")
    program = (ROOT / ".sandbox/cache/docker-registry").read_bytes()
    for node in NODES:
        fleet.put(node, PROGRAM, program)
    yield fleet
    fleet.play("site.yml")


SPREAD = ["-e", "engine_image_spread=fabric", "-e", f"engine_image_registry_program={PROGRAM}"]


def test_one_node_takes_the_image_and_lends_it(stopped: Fleet) -> None:
    for node in NODES:
        take_away(stopped, node)
    stopped.play("playbooks/stage.yml", *SPREAD).ok()
    first, second = (local_images(stopped, node) for node in NODES)
    assert first == second
    note = json.loads(stopped.on("spark-2", "cat /var/lib/sparklanes/images/*.json | head -c 4000"))
    assert note["id"] == first[0]
    for node in NODES:
        assert stopped.on(node, "ls /etc/docker/certs.d") == ""
        assert stopped.on(node, "ls -d /var/lib/sparklanes/registry 2>/dev/null || true") == ""
        assert "image-registry" not in stopped.on(node, "systemctl list-units --no-legend 'sparklanes-job-*'")
    # The lane's own name is not on the second node, and a second run finds the image all the same.
    assert stopped.image not in stopped.on("spark-2", "docker image ls --digests --format '{{.Repository}}@{{.Digest}}'")
    assert stopped.play("playbooks/stage.yml", *SPREAD).ok().changed == 0


def test_gate_a_takes_the_lent_image_for_the_lanes(stopped: Fleet) -> None:
    out = stopped.play("playbooks/launch.yml", "--check").ok().out
    assert "IMAGE.PARITY" in out
    assert "by record" in out


def test_a_node_that_cannot_lend_says_so_and_each_pulls(stopped: Fleet) -> None:
    take_away(stopped, "spark-2")
    out = (
        stopped.play("playbooks/stage.yml", "-e", "engine_image_spread=fabric", "-e", "engine_image_registry_program=/bin/false")
        .ok()
        .out
    )
    assert "lend its image, so each Spark takes it from its source" in " ".join(out.split())
    assert local_images(stopped, "spark-1") == local_images(stopped, "spark-2")


def test_a_lane_is_archived_restored_and_the_rest_pruned(stopped: Fleet) -> None:
    stopped.on("spark-1", "mkdir -p /srv/nas")
    place = ["-e", "archive_directory=/srv/nas"]
    out = stopped.play("playbooks/archive.yml", *place).ok().out
    assert "sha256sum -c SHA256SUMS" in out
    assert "FAILED" not in stopped.on("spark-1", "cd /srv/nas/sandbox_tiny && sha256sum -c SHA256SUMS")
    saved = json.loads(stopped.on("spark-1", "cat /srv/nas/sandbox_tiny/archive.json"))["image"]
    archive = {"path": "/srv/nas/sandbox_tiny/image.tar", "sha256": saved["sha256"]}
    for node in NODES:
        take_away(stopped, node)
    # Its registry forgot the image, as registries do.
    lost = {"lane_image_site": {"digest": None, "ids": [saved["id"]], "archive": archive}}
    spoilt = {"lane_image_site": {"digest": None, "ids": [saved["id"]], "archive": {**archive, "sha256": "0" * 64}}}
    stopped.play("playbooks/stage.yml", *SPREAD, "-e", json.dumps(spoilt)).failed("it is another archive")
    assert local_images(stopped, "spark-1") == []
    stopped.play("playbooks/stage.yml", *SPREAD, "-e", json.dumps(lost)).ok()
    assert saved["id"] in local_images(stopped, "spark-1")
    assert saved["id"] in local_images(stopped, "spark-2")
    listed = stopped.play("playbooks/prune.yml", "-e", json.dumps(lost)).ok()
    assert listed.changed == 0
    # The command that is given to type next repeats the id.
    assert re.findall(r"\bimage +[\d.]+ GiB .*", listed.out) == []


def test_what_no_release_needs_is_listed_first_and_removed_when_confirmed(stopped: Fleet) -> None:
    stopped.on("spark-1", "mkdir -p /var/lib/sparklanes/overlays/" + "9" * 64)
    out = stopped.play("playbooks/prune.yml").ok().out
    assert "9" * 64 in out
    assert "Nothing was removed" in out
    stopped.play("playbooks/prune.yml", "-e", "prune_confirm=true", "-e", '{"prune_kinds": ["overlay"]}').ok()
    assert "9" * 64 not in stopped.on("spark-1", "ls /var/lib/sparklanes/overlays")
