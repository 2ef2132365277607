# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Why Docker did not do what it was asked: its own words, and what they mean."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ansible.module_utils.sparklanes.common.text import said


@dataclass(frozen=True)
class Refusal:
    """`hardware`: the next container would meet the same."""

    id: str
    sentence: str
    remedy: str
    hardware: bool = False


_GPU = "Docker can't give containers their GPU: nvidia-ctk --version, docker info (Runtimes, CDI), nvidia-smi on this Spark; then"
# The first that is found; none of them can look far back, so that a long text costs no time.
KNOWN: tuple[tuple[re.Pattern[str], str, str, str, bool], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), id, sentence, remedy, hardware)
    for pattern, id, sentence, remedy, hardware in (
        (
            r"could not select device driver",
            "docker_refused",
            "Docker knows no driver that gives a container its GPU",
            f"{_GPU} install nvidia-container-toolkit, sudo nvidia-ctk runtime configure --runtime=docker, and restart Docker while nothing serves.",
            True,
        ),
        (
            r"unresolvable CDI devices|failed to inject CDI|CDI device injection|CDI --device|nvidia-c(?:tk|di-hook)|createContainer hook",
            "docker_refused",
            "Docker could not give the container its GPU (CDI)",
            f"{_GPU} sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml. A driver that was updated since needs that again.",
            True,
        ),
        (
            r"nvidia-container-cli|nvml error|driver/library version mismatch",
            "docker_refused",
            "the NVIDIA runtime of Docker refused the container",
            f"{_GPU} reboot this Spark if the driver was updated.",
            True,
        ),
        (
            r"error gathering device information|device node .{0,200}? not|/dev/infiniband",
            "docker_refused",
            "a device that the container needs is not there",
            "Look in /dev on this Spark: without a cable or driver there is no /dev/infiniband (modprobe ib_uverbs mlx5_ib).",
            True,
        ),
        (
            r"No space left on device|\bENOSPC\b|disk quota exceeded",
            "disk_full",
            "a disk is full",
            "Free space on this Spark: df -h /var/lib /var/log; docker system df.",
            False,
        ),
        (
            r"Cannot connect to the Docker daemon|Is the docker daemon running|Docker daemon does not answer|docker\.sock|docker \w+ did not answer",
            "docker_down",
            "Docker does not answer",
            "On this Spark: systemctl status docker; journalctl -u docker.",
            False,
        ),
        (
            r"toomanyrequests|\b429 Too Many|TLS handshake timeout",
            "registry_refused",
            "the registry refused or did not answer",
            "Wait for as long as the registry says, or log in to it (docker login).",
            False,
        ),
        (
            r"OCI runtime|failed to create (?:shim )?task|error response from daemon|executable file not found|exec format error|runc (?:create|run)",
            "docker_refused",
            "Docker could not run the container",
            "Look at the image, its entrypoint and the options in lane_container.",
            False,
        ),
    )
)
_LONGEST = 4096


def refusal_of(words: str, sure: bool = False) -> Refusal | None:
    """What a text of Docker means, with its own words in the sentence; None where it is no refusal.

    sure: it is known that Docker refused, so that unknown words are a refusal too.
    """
    text = said(words, _LONGEST)
    for pattern, id, sentence, remedy, hardware in KNOWN:
        if pattern.search(text):
            return Refusal(id, f"{sentence}: {said(text, 300)}", remedy, hardware)
    if sure:
        return Refusal(
            "docker_refused", f"Docker could not run the container: {said(text, 300)}", "Look at the image and its entrypoint."
        )
    return None
