# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Whether this Docker can give a rank its GPU and its devices, before anything is stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.docker import container_stack as stack

KIT = {"version": "1.17.8", "mode": "auto", "hook": "/usr/bin/nvidia-container-runtime-hook", "cdi_hook": "", "cdi": []}
CDI = {**KIT, "hook": "", "cdi_hook": "/usr/bin/nvidia-cdi-hook", "cdi": ["nvidia.com/gpu=0", "nvidia.com/gpu=all"]}
NONE = {"version": "", "mode": "", "hook": "", "cdi_hook": "", "cdi": []}
DOCKER = {"version": "28.3.3", "default_runtime": "runc", "cdi_dirs": ["/etc/cdi"], "devices": None, "toolkit": KIT}
BY_CDI = {"devices": ["nvidia.com/gpu=all"]}


@pytest.mark.parametrize(
    ("options", "docker", "status", "words"),
    [
        ({"gpus": "all"}, DOCKER, "pass", "NVIDIA Container Toolkit 1.17.8, mode auto, default runtime runc"),
        ({"gpus": "all"}, {**DOCKER, "toolkit": NONE}, "fail", "no NVIDIA Container Toolkit"),
        ({"gpus": "all"}, {**DOCKER, "toolkit": CDI}, "fail", "no nvidia-container-runtime-hook"),
        ({"gpus": "all"}, {**DOCKER, "toolkit": CDI, "version": "29.1.0"}, "pass", "1.17.8"),
        ({"gpus": "all"}, {**DOCKER, "toolkit": CDI, "version": "29.1.0", "cdi_dirs": []}, "fail", "no nvidia-container-runtime-hook"),
        (BY_CDI, {**DOCKER, "toolkit": CDI}, "pass", "mode auto"),
        (BY_CDI, {**DOCKER, "toolkit": NONE, "devices": ["nvidia.com/gpu=all"]}, "pass", ""),
        (BY_CDI, {**DOCKER, "toolkit": CDI, "cdi_dirs": []}, "fail", "CDI is off in Docker 28.3.3"),
        (BY_CDI, DOCKER, "fail", "nvidia.com/gpu=all in no CDI specification (there is none)"),
        ({"devices": ["nvidia.com/gpu=3"]}, {**DOCKER, "toolkit": CDI}, "fail", "nvidia.com/gpu=0, nvidia.com/gpu=all"),
        ({"devices": ["/dev/nvidia0"]}, DOCKER, "pass", "--device /dev/nvidia0"),
        ({"gpus": "all"}, {}, "fail", "not measured"),
        ({"gpus": "all"}, None, "fail", "not measured"),
        (BY_CDI, {"error": "the Docker daemon does not answer"}, "fail", "does not answer"),
        (BY_CDI, {"version": "28"}, "fail", "not measured"),
    ],
)  # fmt: skip
def test_whether_the_gpu_can_be_given(options: dict[str, Any], docker: Any, status: str, words: str) -> None:
    check = stack.gpu_check("s1", options, docker)[0]
    assert (check.id, check.host, check.status) == ("DOCKER.GPU", "s1", status)
    assert words in check.found
    assert bool(check.remedy) == (status == "fail")


def test_a_rank_without_gpu_is_not_asked() -> None:
    assert stack.gpu_check("s1", {"gpus": None, "devices": ["/dev/infiniband"]}, None) == []
    assert stack.device_check("s1", [], None, {}) == []


def test_what_stands_behind_each_device(tmp_path: Path) -> None:
    (tmp_path / "dev/empty").mkdir(parents=True)
    (tmp_path / "dev/file").write_text("")
    (tmp_path / "dev/infiniband").mkdir()
    (tmp_path / "dev/infiniband/uverbs0").symlink_to("/dev/null")
    (tmp_path / "dev/one").symlink_to("/dev/null")
    (tmp_path / "dev/gone").symlink_to("/dev/no/such")
    os.mkfifo(tmp_path / "dev/socket")
    words = [
        "/dev/infiniband:/dev/infiniband",
        "/dev/one:/dev/x:rwm",
        "/dev/empty",
        "/dev/file",
        "/dev/gone",
        "/dev/none",
        "/dev/socket",
    ]
    seen = stack.device_facts([*words, "nvidia.com/gpu=all"], tmp_path)
    assert list(seen.values()) == ["folder", "device", "empty", "other", "missing", "missing", "other", "cdi"]


@pytest.mark.parametrize(
    ("devices", "seen", "words"),
    [
        (["/dev/infiniband"], {"/dev/infiniband": "folder"}, ""),
        (["/dev/infiniband"], {"/dev/infiniband": "missing"}, "/dev/infiniband is not there"),
        (["/dev/infiniband"], {"/dev/infiniband": "empty"}, "/dev/infiniband holds no device"),
        (["/dev/infiniband"], {"/dev/infiniband": "Permission denied"}, "/dev/infiniband Permission denied"),
        (["/dev/infiniband"], {}, "/dev/infiniband was not looked at"),
        (["/dev/infiniband"], None, "/dev/infiniband was not looked at"),
        (["vendor.com/nic=eth1"], {"vendor.com/nic=eth1": "cdi"}, "vendor.com/nic=eth1 is in no CDI specification"),
    ],
)
def test_each_device_is_there(devices: list[str], seen: Any, words: str) -> None:
    check = stack.device_check("s1", devices, seen, DOCKER)[0]
    assert (check.id, check.status) == ("DOCKER.DEVICES", "fail" if words else "pass")
    assert words in check.found


def test_a_device_of_the_gpu_by_cdi_is_the_other_row() -> None:
    assert stack.device_check("s1", ["nvidia.com/gpu=all"], {"nvidia.com/gpu=all": "cdi"}, DOCKER) == []


CTK = "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80a9b9d0db00d9b1d73c0128c8962c55f4d\n"
LISTED = 'time="2026-09-27T10:00:00Z" level=info msg="Found 3 CDI devices"\nnvidia.com/gpu=0\nnvidia.com/gpu=all\n'
CONFIG = '#accept = true\nmode = "no"\n[nvidia-container-cli]\nmode = "no"\n[nvidia-container-runtime]\nmode = "cdi"\n[nvidia-container-runtime.modes]\n'


def test_the_toolkit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], **_: Any) -> tuple[int, str, str]:
        return (0, CTK if argv[1] == "--version" else LISTED, "")

    (tmp_path / "etc/nvidia-container-runtime").mkdir(parents=True)
    (tmp_path / stack.RUNTIME_CONFIG).write_text(CONFIG)
    monkeypatch.setattr(stack.shutil, "which", lambda name: f"/usr/bin/{name}")
    found = stack.toolkit(run, tmp_path)
    assert (found["version"], found["mode"], found["cdi"]) == ("1.17.8", "cdi", ["nvidia.com/gpu=0", "nvidia.com/gpu=all"])
    monkeypatch.setattr(stack.shutil, "which", lambda _: None)
    assert stack.toolkit(lambda *_, **__: (127, "", ""), tmp_path) == NONE
    assert stack.parse_mode("") == "auto"
