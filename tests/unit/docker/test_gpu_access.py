# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Each way to ask Docker for the GPU, as `docker inspect` shows it and as a lane spells it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.sparklanes.docker import gpu_access
from ansible.module_utils.sparklanes.docker.containers import parse_inspect
from ansible.module_utils.sparklanes.rank import drift

CDI = {"Driver": "cdi", "Count": 0, "DeviceIDs": ["nvidia.com/gpu=all"], "Capabilities": None, "Options": None}


def inspected(host: dict[str, Any] | None = None, env: list[str] | None = None, mounts: Any = ()) -> dict[str, Any]:
    return {
        "Id": "ab" * 32, "Name": "/x", "State": {"Running": True}, "Config": {"Image": "e", "Env": env or [], "Labels": {}},
        "HostConfig": {"Runtime": "runc", **(host or {})}, "Mounts": list(mounts),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "uses"),
    [
        (inspected({"DeviceRequests": [CDI]}), True),
        (inspected({"DeviceRequests": [{**CDI, "DeviceIDs": ["runtime.nvidia.com/gpu=0"]}]}), True),
        (inspected({"DeviceRequests": [{**CDI, "DeviceIDs": ["vendor.com/nic=eth1"]}]}), False),
        (inspected({"DeviceRequests": [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]]}]}), True),
        (inspected({"DeviceRequests": [{"Driver": "nvidia", "Count": 1, "DeviceIDs": None, "Capabilities": None}]}), True),
        (inspected({"DeviceRequests": None, "Devices": None}), False),
        (inspected({"Devices": [{"PathOnHost": "/dev/nvidia0", "PathInContainer": "/dev/nvidia0"}]}), True),
        (inspected({"Devices": [{"PathOnHost": "/dev/nvidia-uvm", "PathInContainer": "/dev/nvidia-uvm"}]}), True),
        (inspected({"Devices": [{"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband"}]}), False),
        (inspected({"Runtime": "nvidia"}, ["NVIDIA_VISIBLE_DEVICES=all"]), True),
        (inspected({"Runtime": "nvidia"}, ["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0"]), True),
        (inspected({"Runtime": "nvidia-cdi"}, ["NVIDIA_VISIBLE_DEVICES=0"]), True),
        # nvidia as Docker's default runtime is in every container, also in those that get no GPU from it.
        (inspected({"Runtime": "nvidia"}, ["PATH=/bin"]), False),
        (inspected({"Runtime": "nvidia"}, ["NVIDIA_VISIBLE_DEVICES=void"]), False),
        (inspected({"Runtime": "nvidia"}, ["CUDA_VERSION=8.0.61"]), True),
        (inspected({"Runtime": "nvidia"}, [], [{"Destination": "/var/run/nvidia-container-devices/all"}]), True),
        ({**inspected({"Runtime": "nvidia"}), "Config": {"Image": "e"}}, True),  # nobody told its environment
        (inspected({"Runtime": "runc"}, ["NVIDIA_VISIBLE_DEVICES=all"]), False),  # every CUDA image sets it
    ],
)
def test_who_asks_for_the_gpu(entry: dict[str, Any], uses: bool) -> None:
    assert parse_inspect(json.dumps([entry]))[0].uses_gpu is uses


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ({"gpus": "all"}, "--gpus all"),
        ({"gpus": None, "devices": ["/dev/infiniband", "nvidia.com/gpu=all"]}, "--device nvidia.com/gpu=all"),
        ({"devices": ["/dev/nvidia0:/dev/nvidia0:rwm"]}, "--device /dev/nvidia0:/dev/nvidia0:rwm"),
        ({"devices": ["/dev/infiniband"]}, ""),
        ({}, ""),
    ],
)
def test_how_a_rank_asks_for_the_gpu(options: dict[str, Any], asks: str) -> None:
    assert gpu_access.of_options(options) == asks


def test_a_cdi_device_is_no_path() -> None:
    assert gpu_access.is_cdi("nvidia.com/gpu=all")
    assert not gpu_access.is_cdi("/dev/by=name")
    assert gpu_access.device_path("/dev/infiniband:/dev/infiniband:rwm") == "/dev/infiniband"


def test_a_container_that_was_given_its_gpu_by_cdi_is_like_its_spec() -> None:
    asked = {"options": {"devices": ["nvidia.com/gpu=all"]}}
    there = drift.spec_of_inspect(inspected({"DeviceRequests": [CDI]}))
    assert there["options"]["devices"] == ["nvidia.com/gpu=all"]
    wanted, found = (dict(drift._limits(spec["options"])) for spec in (asked, there))
    assert wanted["device nvidia.com/gpu=all"] == found["device nvidia.com/gpu=all"]
