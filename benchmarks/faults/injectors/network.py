# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The fabric of a node: its link, its packets, its address, its MTU; ports that somebody else holds; a stranger who asks."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field

from benchmarks.faults.injectors import Injector
from benchmarks.faults.nodes import PORT, Fleet


@dataclass
class LinkDown(Injector, name="link_down"):
    """As a pulled cable: the fabric's interface is down."""

    node: str
    device: str = ""

    def inject(self, fleet: Fleet) -> None:
        self.device = fleet.node(self.node).fabric_device
        fleet.node(self.node).do(f"ip link set {self.device} down")

    def undo(self, fleet: Fleet) -> None:
        if self.device:
            fleet.node(self.node).attempt(f"ip link set {self.device} up")


@dataclass
class Drop(Injector, name="drop"):
    """Packets of the fabric are dropped while its link is up: all, or those of one protocol."""

    node: str
    protocol: str = "all"
    device: str = ""

    def _rules(self) -> list[str]:
        match = "" if self.protocol == "all" else f"-p {self.protocol} "
        return [f"INPUT -i {self.device} {match}-j DROP", f"OUTPUT -o {self.device} {match}-j DROP"]

    def inject(self, fleet: Fleet) -> None:
        self.device = fleet.node(self.node).fabric_device
        fleet.node(self.node).do(" && ".join(f"iptables -w -I {rule}" for rule in self._rules()))

    def undo(self, fleet: Fleet) -> None:
        if self.device:
            fleet.node(self.node).attempt("; ".join(f"iptables -w -D {rule}" for rule in self._rules()))


@dataclass
class NoAddress(Injector, name="no_fabric_address"):
    node: str
    device: str = ""

    def inject(self, fleet: Fleet) -> None:
        node = fleet.node(self.node)
        self.device = node.fabric_device
        node.do(f"ip address del {node.fabric}/24 dev {self.device}")

    def undo(self, fleet: Fleet) -> None:
        if self.device:
            node = fleet.node(self.node)
            node.attempt(f"ip address add {node.fabric}/24 dev {self.device}")


@dataclass
class Mtu(Injector, name="mtu"):
    node: str
    size: int
    device: str = ""
    before: str = ""

    def inject(self, fleet: Fleet) -> None:
        node = fleet.node(self.node)
        self.device = node.fabric_device
        self.before = str(json.loads(node.do(f"ip -json link show dev {self.device}"))[0]["mtu"])
        node.do(f"ip link set {self.device} mtu {self.size}")

    def undo(self, fleet: Fleet) -> None:
        if self.before:
            fleet.node(self.node).attempt(f"ip link set {self.device} mtu {self.before}")


LISTEN = "import socket,time; s=socket.socket(); s.setsockopt(1,2,1); s.bind(('0.0.0.0',{port})); s.listen(); time.sleep(3600)"


@dataclass
class HoldPort(Injector, name="hold_port"):
    """A process of the node that is nobody's container listens on a port."""

    node: str
    port: int
    unit: str = "emulated-squatter"

    def inject(self, fleet: Fleet) -> None:
        code = LISTEN.format(port=self.port)
        fleet.node(self.node).do(f'systemd-run --quiet --collect --unit={self.unit} /usr/bin/python3 -c "{code}"')
        fleet.node(self.node).do(f"for i in $(seq 50); do ss -ltn | grep -q ':{self.port} ' && exit 0; sleep 0.1; done; exit 1")

    def undo(self, fleet: Fleet) -> None:
        fleet.node(self.node).attempt(f"systemctl stop {self.unit}")

    def touched(self, fleet: Fleet) -> str:
        code, _ = fleet.node(self.node).attempt(f"systemctl is-active --quiet {self.unit}")
        return f"the process on port {self.port} of {self.node} is gone" if code != 0 else ""


@dataclass
class Stranger(Injector, name="stranger"):
    """Somebody on the network asks the API for paths that read like failures, from now until the end."""

    paths: list[str]
    over: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def inject(self, fleet: Fleet) -> None:
        self.thread = threading.Thread(target=self._ask, args=(f"http://{fleet.head.mgmt}:{PORT}",), daemon=True)
        self.thread.start()

    def _ask(self, api: str) -> None:
        while not self.over.wait(0.3):
            for path in self.paths:
                try:
                    urllib.request.urlopen(api + path, timeout=2).close()
                except (OSError, urllib.error.URLError):
                    continue

    def undo(self, fleet: Fleet) -> None:
        self.over.set()
        if self.thread is not None:
            self.thread.join(10)


FALSE_API = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def do_POST(self):
        body = b'{"choices": [{"text": "", "message": {"content": null}}]}'
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer((sys.argv[1], 8009), Answer).serve_forever()
"""


@dataclass
class FalseApi(Injector, name="false_api"):
    """Before the engine's API stands another one that is always well and generates nothing."""

    server: subprocess.Popen[bytes] | None = None
    rule: str = ""

    def inject(self, fleet: Fleet) -> None:
        head = fleet.head
        into = ["nsenter", f"--target={head.pid}", "--net", "--", sys.executable, "-c", FALSE_API, head.mgmt]
        self.server = subprocess.Popen(into, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1)
        self.rule = f"-d {head.mgmt} -p tcp --dport {PORT} -j DNAT --to-destination {head.mgmt}:8009"
        head.do(f"iptables -w -t nat -I OUTPUT {self.rule} && iptables -w -t nat -I PREROUTING {self.rule}")

    def undo(self, fleet: Fleet) -> None:
        if self.rule:
            fleet.head.attempt(f"iptables -w -t nat -D OUTPUT {self.rule}; iptables -w -t nat -D PREROUTING {self.rule}")
        if self.server is not None:
            self.server.terminate()
            self.server.wait()
