# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The inventory that the sandbox writes: which nodes there are and where their image and model come from."""

from __future__ import annotations

import json
from typing import Any

from sandbox.layout import Clone, State
from sandbox.services import PORTS

HEADER = "# Written by script/sandbox up, removed by script/sandbox down. Change nothing here: it is written again.\n"


def inventory(clone: Clone, state: State) -> dict[str, Any]:
    values = state.values
    ssh_args = f"-o UserKnownHostsFile={clone.ssh / 'known_hosts'} -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"
    shared = {
        "ansible_user": "root",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(clone.ssh / "id_ed25519"),
        "ansible_ssh_common_args": ssh_args,
        "fabric_transport": "socket",
        "fabric_cidr": state.networks["fabric"],
        "lane": "sandbox_tiny",
        "gates_bank_directories": [str(clone.home / "banks")],
        # A CPU gives some ten tokens a second.
        "gates_corpus_chat_tokens": 40,
        # Opt-in parts of the host roles, on here so that they are tested. No node has an NVIDIA package: another one is held.
        "spark_survival_ssh": "present",
        "spark_survival_reserve": "present",
        "spark_survival_journal": "present",
        "spark_survival_hold": "present",
        "spark_survival_hold_patterns": ["nvidia-*", "procps"],
        "sandbox_api_host": next(iter(state.nodes.values()))["mgmt"],
        # What a person has in the environment for the real Hub has no business with this one, which speaks without TLS.
        "model_weights_token": "",
        "model_weights_hub_endpoint": f"http://{values['address']}:{PORTS['hub']}",
        # The registry is on this machine: each node takes the image from it at once.
        "engine_image_spread": "never",
        # It speaks without TLS, to this machine too.
        "engine_image_insecure_registries": [values["repository"].partition("/")[0]],
        # Both nodes and all images share the disk of one machine, which may be small.
        "engine_image_reserve_gib": 1,
        "sandbox_image_repository": values["repository"],
        "sandbox_image_digest": values["digest"],
        "sandbox_vllm_version": values["vllm"],
        "sandbox_model_revision": values["revision"],
    }
    if values.get("pids_limit") == "yes":
        shared["lane_container_site"] = {"pids_limit": 32768}  # as a lane has it anywhere else
    hosts = {name: {"ansible_host": node["mgmt"], "sandbox_fabric_ip": node["fabric"]} for name, node in state.nodes.items()}
    return {"all": {"children": {"sparks": {"hosts": hosts, "vars": shared}}}}


def render(tree: Any, indent: int = 0) -> str:
    """YAML of nested mappings; scalars as JSON, which YAML contains."""
    lines = []
    for key, value in tree.items():
        pad = "  " * indent
        if isinstance(value, dict):
            lines.append(f"{pad}{key}:")
            lines.append(render(value, indent + 1))
        else:
            lines.append(f"{pad}{key}: {json.dumps(value)}")
    return "\n".join(lines)


def text(clone: Clone, state: State) -> str:
    return f"---\n{HEADER}{render(inventory(clone, state))}\n"
