"""Before memory is moved: who may serve here. Answers of Docker and of nvidia-smi."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.sparklanes.host.occupied import occupied


class FakeModule:
    """Answers of Docker and of nvidia-smi."""

    def __init__(self, inspect: str = "[]", smi: tuple[int, str, str] | None = None) -> None:
        self.inspect, self.smi = inspect, smi

    def get_bin_path(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if self.smi or name == "docker" else None

    def run_command(self, words: list[str], **_: Any) -> tuple[int, str, str]:
        if words[0] == "timeout":
            assert self.smi
            return self.smi
        if "ps" in words:
            return 0, "c1\n" if self.inspect != "[]" else "", ""
        return (0, self.inspect, "") if self.inspect != "broken" else (1, "", "Cannot connect to the Docker daemon")


def inspected(running: bool, **labels: str) -> str:
    return json.dumps(
        [
            {
                "Id": "ab" * 32,
                "Name": "/vllm_x",
                "State": {"Running": running, "Status": "running" if running else "exited"},
                "Config": {"Image": "e", "Labels": labels},
                "HostConfig": {},
            }
        ]
    )


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (FakeModule(), ""),
        (FakeModule(inspected(True, **{"sparklanes.deployment": "sparks"})), "vllm_x runs"),
        (FakeModule(inspected(False, **{"sparklanes.deployment": "sparks"})), ""),
        (FakeModule(inspected(True)), ""),
        (FakeModule("broken"), "Docker does not answer"),
        (FakeModule(smi=(0, "4711, /usr/bin/python3, 30000 MiB\n", "")), "python3 (pid 4711) holds the GPU"),
        (
            FakeModule(smi=(0, "4711, /usr/bin/python3, [N/A]\n4711, /usr/bin/python3, [N/A]\n", "")),
            "python3 (pid 4711) holds the GPU",
        ),
        (FakeModule(smi=(0, "", "")), ""),
        (FakeModule(smi=(9, "", "NVIDIA-SMI has failed")), "nvidia-smi does not answer (NVIDIA-SMI has failed)"),
    ],
)
def test_whoever_may_hold_the_gpu_is_named_and_silence_is_no_answer(module: Any, says: str) -> None:
    told = occupied(module.run_command, module.get_bin_path)
    assert says in told
    assert bool(told) == bool(says)


def test_a_machine_without_docker_and_gpu_is_free() -> None:
    assert occupied(lambda *_: (127, "", ""), lambda _: None) == ""
