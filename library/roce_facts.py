#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
---
module: roce_facts
short_description: Find the fabric of a DGX Spark and prove what NCCL will do with it
description:
  - Reads RDMA devices, GID tables, network devices and addresses of a node, decides which of them are the
    fabric, and returns the environment for NCCL and Gloo.
  - The environment is checked before it is returned. A simulation of NCCL's own rules must end at the chosen
    devices and GIDs on every device, otherwise there is an error and no environment.
  - Never guesses. Where more than one answer is possible the result has an error with a stable code, a sentence
    and the next step. All codes are in docs/fabric.md.
  - Only reads. Errors of the node don't fail the module, options that contradict each other do.
version_added: "0.1.0"
options:
  root:
    description:
      - Read everything below this path. With another root than V(/) the addresses come from C(ip_j_addr.json) and
        C(ip_dj_link.json) in it, and rules from C(ip_j_rule.json), instead of the command C(ip).
    type: path
    default: /
  transport:
    description: V(roce) for RDMA, V(socket) for plain TCP between nodes without RDMA devices.
    type: str
    choices: [roce, socket]
    default: roce
  fabric_cidr:
    description: The network(s) of the fabric. Needed with V(socket), and where several QSFP ports could be meant.
    type: list
    elements: str
    default: []
  peers:
    description: Fabric addresses of the other nodes. The QSFP port whose networks hold all of them is the fabric.
    type: list
    elements: str
    default: []
  ports_wanted:
    description: How many QSFP ports the fabric uses on this node. Left out, one is expected (all with a ring).
    type: int
  want_both_halves:
    description: A QSFP port is two PCI functions with half the bandwidth each. Demand both.
    type: bool
    default: true
  topology:
    description: V(switch), V(direct) for one cable between two Sparks, V(ring) for cables from port to port.
    type: str
    choices: [switch, direct, ring]
    default: switch
  hcas:
    description: Consider these RDMA devices only. The only way to use a virtual or sub-function.
    type: list
    elements: str
    default: []
  allow_soft:
    description: Also use software RDMA (rxe). For tests.
    type: bool
    default: false
  allow_ipv6:
    description: Use global IPv6 addresses where a node has no IPv4 ones. Must be alike on all nodes.
    type: bool
    default: false
  control_ifname:
    description: Network device of bootstrap, Gloo and the engine's connections. Left out, that of the first rail.
    type: str
  nccl_version:
    description: NCCL's version in the engine image, like V(2.30.7). Left out, 2.21 or newer is assumed.
    type: str
  gid_policy:
    description:
      - V(validated_unset) leaves the GID to NCCL and proves its choice. V(pin_per_node) sets NCCL_IB_GID_INDEX.
    type: str
    choices: [validated_unset, pin_per_node]
    default: validated_unset
  gid_index:
    description: The index to pin. Left out, the one that is right on all chosen devices.
    type: int
  strict:
    description: Also set NCCL_NET=IB, so that NCCL stops where it would otherwise use sockets without a word.
    type: bool
    default: false
extends_documentation_fragment: [sparklanes, sparklanes.info]
"""

EXAMPLES = r"""
- name: Fabric of a pair with one cable
  roce_facts:

- name: Both QSFP ports are cabled, this is the fabric
  roce_facts:
    fabric_cidr: [192.168.100.0/24, 192.168.101.0/24]

- name: Nodes without RDMA devices
  roce_facts:
    transport: socket
    fabric_cidr: 10.93.2.0/24
"""

RETURN = r"""
summary:
  description: The answer as plain lines, for people.
  type: list
  elements: str
  returned: always
candidates:
  description: Every RDMA port with its addresses, whether it was chosen, and the code and words why not.
  type: list
  elements: dict
  returned: always
chosen:
  description: The rails in NCCL's order.
  type: list
  elements: dict
  returned: always
env:
  description: Environment for the ranks on this node. Empty where there are errors.
  type: dict
  returned: always
errors:
  description: What makes the fabric unusable, each with code, message and remedy.
  type: list
  elements: dict
  returned: always
warnings_found:
  description: What works and should be mended, each with code, message and remedy.
  type: list
  elements: dict
  returned: always
nccl:
  description: What NCCL would use with this environment, without any, and with the node's nccl.conf added.
  type: dict
  returned: always
fabric:
  description: The fact C(roce_fabric) of the role roce.
  type: dict
  returned: always
actions:
  description: Always empty, nothing is done.
  type: list
  elements: str
  returned: always
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.fabric.devices import read_node
from ansible.module_utils.sparklanes.fabric.node import detect
from ansible.module_utils.sparklanes.fabric.options import Options, read_options
from ansible.module_utils.sparklanes.fabric.ports import TRANSIENT
from ansible.module_utils.sparklanes.fabric.sysfs import Tree

MAX_JSON = 16 * 1024 * 1024
SETTLE_SECONDS = 0.5  # the kernel fills GID slots within milliseconds of an address


def addresses(module: AnsibleModule, root: str) -> tuple[str | None, ...]:
    """The JSON of `ip`: asked on a live node, read from files below another root."""
    tree = Tree(root)
    if tree.root != "/":
        return tree.text("ip_j_addr.json", limit=MAX_JSON), tree.text("ip_dj_link.json", limit=MAX_JSON)
    command = module.get_bin_path("ip")
    if not command:
        return (None,)
    code, output, _error = commands.run([command, "-d", "-j", "addr", "show"])
    return (output if code == 0 else None,)


def rules(module: AnsibleModule, root: str) -> str | None:
    """The JSON of `ip rule`, of the live node or as recorded."""
    tree = Tree(root)
    if tree.root != "/":
        text: str | None = tree.text("ip_j_rule.json", limit=MAX_JSON)
        return text
    command = module.get_bin_path("ip")
    code, output, _error = commands.run([command, "-j", "rule", "show"]) if command else (1, "", "")
    return output if code == 0 else None


def examine(module: AnsibleModule, root: str, options: Options) -> dict[str, Any]:
    result: dict[str, Any] = detect(read_node(root, *addresses(module, root), rules=rules(module, root)), options)
    return result


def transient(result: dict[str, Any]) -> bool:
    codes = [item["code"] for item in result["candidates"] + result["warnings"] + result["errors"]]
    return any(code in TRANSIENT for code in codes)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "transport": {"type": "str", "choices": ["roce", "socket"], "default": "roce"},
            "fabric_cidr": {"type": "list", "elements": "str", "default": []},
            "peers": {"type": "list", "elements": "str", "default": []},
            "ports_wanted": {"type": "int"},
            "want_both_halves": {"type": "bool", "default": True},
            "topology": {"type": "str", "choices": ["switch", "direct", "ring"], "default": "switch"},
            "hcas": {"type": "list", "elements": "str", "default": []},
            "allow_soft": {"type": "bool", "default": False},
            "allow_ipv6": {"type": "bool", "default": False},
            "control_ifname": {"type": "str"},
            "nccl_version": {"type": "str"},
            "gid_policy": {"type": "str", "choices": ["validated_unset", "pin_per_node"], "default": "validated_unset"},
            "gid_index": {"type": "int"},
            "strict": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]
    try:
        options = read_options(module.params)
    except ValueError as error:
        module.fail_json(msg=str(error))
    result = examine(module, root, options)
    if transient(result):  # an address may be coming or going at this moment: look again, once
        if Tree(root).root == "/":
            time.sleep(SETTLE_SECONDS)
        result = examine(module, root, options)
    # `warnings` is Ansible's own key of a result: a list of texts that it prints
    found = result.pop("warnings")
    module.exit_json(changed=False, actions=[], warnings_found=found, **result)


if __name__ == "__main__":
    main()
