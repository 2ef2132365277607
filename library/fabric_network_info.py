#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Who has the say over the fabric's interfaces of a Spark now."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_network_info
short_description: Who has the say over the fabric's interfaces of a Spark now
description:
  - Reads the files of netplan, NetworkManager and systemd-networkd in C(/etc), C(/run) and C(/usr/lib), addresses, the default route, and the
    side of the ssh connection on this Spark.
  - It judges nothing and changes nothing.
options:
  interfaces:
    description: The interfaces that a plan is about.
    type: list
    elements: str
    default: []
  file:
    description: Name of our netplan file.
    type: str
    default: 40-cx7.yaml
  root:
    description: Root of the file tree, for tests. With another one than V(/) addresses and routes come from C(ip_j_addr.json) and C(ip_j_route.json) there.
    type: path
    default: /
extends_documentation_fragment: [sparklanes, sparklanes.info]
"""

EXAMPLES = r"""
- name: Who has the interfaces now
  fabric_network_info:
    interfaces: [enp1s0f0np0, enP2p1s0f0np0]
"""

RETURN = r"""
tool:
  description: Path of C(netplan), empty where it is not installed.
  returned: always
  type: str
interfaces:
  description: Each interface with C(mac), C(mtu), C(up) and C(addresses).
  returned: always
  type: dict
management:
  description: Interface to the reason why it must not be touched.
  returned: always
  type: dict
owners:
  description: Files of others that say something about O(interfaces), with C(interface), C(kind), C(path), C(weight) (V(blocks) or V(tells)), C(why).
  returned: always
  type: list
  elements: dict
file:
  description: Our file, C(path) and C(text), null where it does not exist, and C(trial), the text on trial.
  returned: always
  type: dict
pending:
  description: Whether a trial is C(armed), and C(when) it takes itself back.
  returned: always
  type: dict
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.systemd import parse_show
from ansible.module_utils.sparklanes.fabric import netplan
from ansible.module_utils.sparklanes.fabric import trial as fabric_trial


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "file": {"type": "str", "default": "40-cx7.yaml"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    name, root = module.params["file"], Path(module.params["root"])
    is_live = root == Path("/")

    def ip(recorded: str, *args: str) -> str:
        if not is_live:
            path = root / recorded
            return path.read_text(encoding="utf-8") if path.exists() else ""
        rc, out, err = commands.run(["ip", "-j", *args])
        if rc != 0:
            module.fail_json(
                msg=f"ip -j {' '.join(args)} failed on this Spark (exit {rc}): {err.strip()}. The package iproute2 brings it"
            )
        return str(out)

    interfaces = fabric_trial.parse_ip(ip("ip_j_addr.json", "addr", "show"))
    here = fabric_trial.ssh_address(root / "proc", os.getpid() if is_live else 1)
    files = netplan.read_files(root)
    found = [
        owner.to_dict()
        for interface in module.params["interfaces"]
        for owner in netplan.owners(files, interface, (interfaces.get(interface) or {}).get("mac", ""), name)
    ]
    timer: dict[str, str] = {}
    if is_live:
        _, text, _ = commands.run(
            ["systemctl", "show", f"{fabric_trial.TIMER}.timer", "--property=ActiveState,NextElapseUSecMonotonic"]
        )
        timer = parse_show(text)
    module.exit_json(
        changed=False,
        actions=[],
        tool=module.get_bin_path("netplan") or "" if is_live else "/usr/sbin/netplan",
        interfaces=interfaces,
        management=fabric_trial.management(interfaces, here, ip("ip_j_route.json", "route", "show", "default")),
        owners=found,
        file={
            "path": f"/etc/netplan/{name}",
            "text": files.get(f"etc/netplan/{name}"),
            "trial": files.get(f"run/netplan/{name}"),
        },
        pending={
            "armed": timer.get("ActiveState") == "active",
            "when": f"{timer.get('NextElapseUSecMonotonic', '')} after boot".strip(),
        },
    )


if __name__ == "__main__":
    main()
