# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What `docker info` tells of a daemon, with each of its image stores."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.sparklanes.docker import daemon

CLASSIC = {
    "ServerVersion": "28.3.3", "Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "extfs"]], "DockerRootDir": "/data/docker",
    "DefaultRuntime": "runc", "Runtimes": {"runc": {"path": "runc"}, "nvidia": {"path": "nvidia-container-runtime"}},
    "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"], "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}],
}  # fmt: skip
SNAPSHOTS = {"Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}
SYSTEM = {**CLASSIC, **SNAPSHOTS, "Containerd": {"Address": "/run/containerd/containerd.sock"}}
OWN = {**CLASSIC, **SNAPSHOTS, "Containerd": {"Address": "/var/run/docker/containerd/containerd.sock"}}


@pytest.mark.parametrize(
    ("data", "config", "root"),
    [
        (CLASSIC, "", "/data/docker"),
        (SYSTEM, "", "/var/lib/containerd"),
        (SYSTEM, 'version = 3\nroot = "/nvme/containerd"\n[grpc]\nroot = "/no"\n', "/nvme/containerd"),
        (SYSTEM, "version = 3\n[plugins]\nroot = '/no'\n", "/var/lib/containerd"),
        (OWN, 'root = "/elsewhere"\n', "/data/docker/containerd/daemon"),
        ({}, "", ""),
    ],
)
def test_where_images_lie(data: dict[str, Any], config: str, root: str) -> None:
    assert daemon.image_root(data, lambda _: config) == root


@pytest.mark.parametrize("data", [SYSTEM, OWN])
def test_the_store_is_named(data: dict[str, Any]) -> None:
    assert daemon.parse_info(data, lambda _: "")["image_store"] == "io.containerd.snapshotter.v1 (overlayfs)"
    assert daemon.parse_info(CLASSIC, lambda _: "")["image_store"] == "overlay2"


def test_what_is_told_of_a_daemon() -> None:
    told = daemon.parse_info(CLASSIC, lambda _: "")
    assert (told["version"], told["root"], told["default_runtime"]) == ("28.3.3", "/data/docker", "runc")
    assert told["devices"] == ["nvidia.com/gpu=all"]
    older = daemon.parse_info({"ServerVersion": "24.0.7"}, lambda _: "")
    assert (older["cdi_dirs"], older["devices"], older["root"]) == ([], None, "")
