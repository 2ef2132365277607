# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The image of the lane is on each node, by the digest that the registry knows; its tag only keeps `docker image prune` off."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.fixture
def reference(host: Any) -> str:
    found = host.ansible.get_variables()
    return f"{found['sandbox_image_repository']}@{found['sandbox_image_digest']}"


def test_image_is_there_by_digest(host: Any, reference: str) -> None:
    image = json.loads(host.check_output("docker image inspect %s", reference))[0]
    assert reference in image["RepoDigests"]
    assert [tag.rpartition(":")[2].startswith("sparklanes-") for tag in image["RepoTags"]] == [True]
    host.check_output("docker image prune --force")
    host.check_output("docker image inspect %s", reference)


def test_image_answers_without_the_registry(host: Any, reference: str) -> None:
    """What runs is what the digest names; `create` would pull if something were missing, and never may."""
    box = host.check_output("docker create --pull never --network none %s true", reference)
    try:
        assert host.check_output("docker inspect --format '{{.Config.Image}}' %s", box) == reference
    finally:
        host.check_output("docker rm %s", box)
