# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The last lines of script/demo: what the newest launch on the sandbox proved, and the model's own reply.

python3 -m sandbox.summary [--unbanked]
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "Hello"


def newest_receipt(folder: Path) -> Path | None:
    """Of a launch that came to its end. Folders are named by UTC time, so the last name is the newest."""
    found = sorted(folder.glob("*/receipt.json"), key=lambda path: path.parent.name, reverse=True)
    return next((path for path in found if "ranks" in json.loads(path.read_text(encoding="utf-8"))), None)


def gate_lines(gates: dict[str, Any]) -> list[str]:
    lines = [f"{'gate':<16} {'verdict':<8} checks"]
    for name, gate in gates.items():
        statuses = [check["status"] for check in gate["checks"]]
        counted = ", ".join(f"{statuses.count(s)} {s}" for s in ("pass", "warn", "skip", "fail") if s in statuses)
        lines.append(f"{name:<16} {gate['verdict']:<8} {counted}")
        for check in gate["checks"]:
            if check["status"] in ("warn", "fail"):
                lines.append(f"{'':<16} {check['status']:<8} {check['id']} {check['host']}: {check['found']}")
    return lines


def head(receipt: dict[str, Any]) -> dict[str, Any]:
    """The rank specification of the rank that serves the API."""
    found: dict[str, Any] = next(spec for spec in receipt["ranks"].values() if spec["rank"] == 0)
    return found


def ask(url: str, model: str) -> str:
    """One chat completion from the running engine."""
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 20, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def served_model(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        return str(json.load(answer)["data"][0]["id"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--unbanked", action="store_true", help="only say by the exit status whether a bank is missing")
    arguments = parser.parse_args()
    path = newest_receipt(ROOT / "artifacts" / "sparks")
    if path is None:
        print("error: there is no receipt in artifacts/sparks: playbooks/launch.yml has not run here.", file=sys.stderr)
        return 2
    receipt = json.loads(path.read_text())
    if arguments.unbanked:
        return 0 if receipt["outcome"].get("status") == "serving-unbanked" else 1
    api = head(receipt)["api"]
    url = f"http://{api['host']}:{api['port']}"
    model = served_model(url)
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 20, "temperature": 0})
    print("\n".join(["", *gate_lines(receipt["gates"]), ""]))
    print(f"status    {receipt['outcome'].get('status')}, release {receipt['release']}")
    print(f"endpoint  {url}/v1")
    print(f"ask it    curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'")
    print(f"reply     {ask(url, model)!r}  (random weights: gibberish, but the same each time)")
    print(f"receipts  {path.parent.relative_to(ROOT)}")
    print("stop      ansible-playbook -i inventory/sandbox playbooks/stop.yml -l sparks; then script/sandbox down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
