# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Who can reach what a lane serves, and whose code runs in it: what is open is said aloud before a launch and after it.

What a key of vLLM covers: docs.vllm.ai/en/stable/usage/security, "API Key Authentication Limitations". That TCPStore listens on every
interface and asks nobody who they are: the same page, "Security and Firewalls".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, WARN, Check
from ansible.module_utils.sparklanes.common.interfaces import interfaces
from ansible.module_utils.sparklanes.common.registered import look
from ansible.module_utils.sparklanes.lane.view import View

# Below these prefixes vLLM asks for the key; some of what it serves beside them to anybody.
COVERED = "/v1, /v2 and /inference"
UNCOVERED = "/invocations /tokenize /score /pause /update_weights …"
# With it /collective_rpc calls any method of the engine, without a key.
DEV_MODE = "VLLM_SERVER_DEV_MODE"
PAGE = "docs/threat-model.md"
# Names of files in a row of a table; the remedy has all of them.
SHOWN = 5


def doors(lane: Mapping[str, Any]) -> str:
    """What a resolved lane opens on the Spark of its head, and what keeps it shut: one line."""
    view = View(lane)
    host, port = str(lane["lane_api_host"] or ""), lane["lane_port"]
    where = interfaces(host)
    said = [f"API on {where or host}, port {port}" + ("" if where else ", which only this Spark reaches")]
    if "VLLM_API_KEY" in lane["lane_secret_env"]:
        said.append(f"a key for {COVERED}, none for {UNCOVERED}")
    else:
        said.append("no key")
    if not view.args.get("--ssl-certfile"):
        said.append("no TLS")
    if str(view.env.get(DEV_MODE) or "0") != "0":
        said.append(f"{DEV_MODE}: /collective_rpc calls any method of the engine")
    if int(lane["lane_nodes"] or 1) > 1:
        said.append(f"rendezvous on every interface, port {lane['lane_master_port']}: no authentication")
    return "; ".join(said)


def exposed(lane: Mapping[str, Any], deployment: str, head: str) -> Check:
    """What of a lane others can reach. Open by the site's own word (`lane_api_open`) it passes, closed by that word it fails."""
    found, open_ = doors(lane), lane["lane_api_open"]
    if not interfaces(str(lane["lane_api_host"] or "")):
        return Check("ENGINE.EXPOSED", deployment, PASS, found)
    if open_:
        return Check("ENGINE.EXPOSED", deployment, PASS, f"{found}; open on purpose (lane_api_open)")
    port = lane["lane_port"]
    remedy = (
        f"In inventory/fleet/group_vars/lane_{lane['lane_id']}.yml write lane_api_host: 127.0.0.1, and let a reverse proxy hand on /v1 alone; "
        f"or let in whom you name, on {head}: sudo iptables -I INPUT ! -i lo -p tcp --dport {port} ! -s CLIENTS/24 -j DROP. "
        f"Where it is meant to be so: lane_api_open: true. {PAGE} has proxy and firewall whole."
    )
    status = WARN if open_ is None else FAIL
    return Check(
        "ENGINE.EXPOSED", deployment, status, found, "lane_api_host: 127.0.0.1, or the site's word that it is open", remedy
    )


# --- code that comes with a model ------------------------------------------------------------------------------


def remote_code(host: str, lane: Mapping[str, Any], staged: Any) -> list[Check]:
    """Which *.py of the models the engine runs, and whether the lane pins each. `staged`: what model_stage registered of this host."""
    if not lane or not View(lane).has("--trust-remote-code"):
        return []
    known = look(staged).facts
    models = (known or {}).get("models")
    if not isinstance(models, list) or not all(isinstance((model or {}).get("code"), Mapping) for model in models):
        found = "the lane passes --trust-remote-code, and which code its models bring is not known"
        return [
            Check(
                "ENGINE.REMOTE_CODE",
                host,
                WARN,
                found,
                "the *.py of each model with their hashes",
                "Run site.yml, which stages them.",
            )
        ]
    code = {model["name"]: {str(name): str(sha256) for name, sha256 in model["code"].items()} for model in models}
    loose = {
        name: {file: sha256 for file, sha256 in files.items() if not _pins(lane, name).get(file)} for name, files in code.items()
    }
    if not any(loose.values()):
        number = sum(map(len, code.values()))
        found = (
            f"{number} *.py of its models, each pinned by the lane"
            if number
            else "--trust-remote-code, and no *.py comes with its models"
        )
        return [Check("ENGINE.REMOTE_CODE", host, PASS, found)]
    every = [
        f"{_written(file)} ({sha256[:12] or 'hash unknown'})" for one in loose.values() for file, sha256 in sorted(one.items())
    ]
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    found = f"{', '.join(every[:SHOWN])}{more}: run as root in the container, with the word of whoever gave the files as the only proof"
    remedy = (
        f"Read them in {_folders(models, loose)}, then write in inventory/fleet/group_vars/lane_{lane['lane_id']}.yml: "
        + "; ".join(_pin_line(name, one) for name, one in loose.items() if one)
    )
    return [Check("ENGINE.REMOTE_CODE", host, WARN, found, "each *.py pinned by its sha256", remedy)]


def _pins(lane: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return (lane.get(f"lane_{name}") or {}).get("sha256") or {}


def _folders(models: Sequence[Mapping[str, Any]], loose: Mapping[str, Any]) -> str:
    return " and ".join(str(model.get("path")) for model in models if loose.get(str(model.get("name"))))


def _written(name: str) -> str:
    """The name of a file, which somebody else chose, as a key of YAML."""
    return name if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", name) else json.dumps(name)


def _pin_line(name: str, files: Mapping[str, str]) -> str:
    """The line to write, whole hashes in it: a row of a table shows only their beginnings."""
    pins = ", ".join(f"{_written(file)}: {sha256 or '<sha256sum of it>'}" for file, sha256 in sorted(files.items()))
    return f"lane_{name}_site: {{sha256: {{{pins}}}}}"
