# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The job that lends a Spark's engine image to its peers: a registry on the fabric, for the time of staging.

The registry is the distribution's own docker-registry. It speaks TLS and only to clients which hold the certificate made for this
staging: Docker finds both in /etc/docker/certs.d, which it reads at each pull, so that no daemon is reloaded or restarted.
It ends when it is told to, and by itself when nobody has pulled for a while. What it stored goes with it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common import ours
from ansible.module_utils.sparklanes.common.files import write_atomically
from ansible.module_utils.sparklanes.docker.archive import guarding_memory
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.serving import RequestLog, serve_until_idle, wait_until
from ansible.module_utils.sparklanes.jobs.state import JobError

JOB = "image-registry"
# What our mark says in a folder that we made (`common.ours`).
STORE, TRUST = "image registry of a staging", "certificates of a staging"
CERTIFICATES = Path("/etc/docker/certs.d")
# A taker's clock may be behind by hours (PARITY.CLOCK is a warning), and would refuse a certificate of a moment ago.
BEFORE_DAYS, VALID_DAYS = 1, 2
START_SECONDS = 20.0

# A line of the access log, in the form that Apache calls combined. Who shows no certificate of this staging is told of by other lines.
ASKED = re.compile(r'[0-9A-Fa-f.:]+ - \S+ \[[^\]]+\] "[A-Z]+ /v2/')
_PUSHED = re.compile(r"digest: (sha256:[0-9a-f]{64})")


def config(folder: Path, address: str, port: int) -> str:
    """What docker-registry reads: where it listens, who it trusts, where it stores. YAML, made of values that can't break it."""
    listen = ipaddress.ip_address(address)
    host = f"[{listen}]" if listen.version == 6 else str(listen)
    return (
        "version: 0.1\n"
        "log: {level: info, accesslog: {disabled: false}}\n"
        "storage:\n"
        f"  filesystem: {{rootdirectory: {folder}/blobs}}\n"
        "  delete: {enabled: false}\n"
        "http:\n"
        f'  addr: "{host}:{int(port)}"\n'
        "  tls:\n"
        f"    certificate: {folder}/server.pem\n"
        f"    key: {folder}/server.key\n"
        f"    clientcas: [{folder}/server.pem]\n"
    )


def openssl_config(folder: Path, address: str) -> str:
    """What `openssl ca` reads, which alone can date a certificate back before OpenSSL 3.4. It keeps its books in the folder."""
    return (
        "[req]\ndistinguished_name = names\n[names]\n"
        "[ca]\ndefault_ca = staging\n"
        f"[staging]\ndatabase = {folder}/index.txt\nnew_certs_dir = {folder}\nrand_serial = yes\n"
        "default_md = sha256\npolicy = any\nunique_subject = no\n"
        "[any]\ncommonName = supplied\n"
        f"[server]\nbasicConstraints = critical, CA:true\nsubjectAltName = IP:{ipaddress.ip_address(address)}\n"
        "[client]\nbasicConstraints = critical, CA:false\n"
    )


def certificate_commands(folder: Path, now: float) -> list[list[str]]:
    """openssl's, over `openssl_config` and an empty index.txt in the folder: a certificate that also signs, and one for clients.

    They are worth nothing after two days.
    """
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    config = ["-config", f"{folder}/openssl.cnf"]
    first, last = (time.strftime("%Y%m%d%H%M%SZ", time.gmtime(now + 86400 * days)) for days in (-BEFORE_DAYS, VALID_DAYS))
    sign = [
        "openssl",
        "ca",
        *config,
        "-batch",
        "-notext",
        "-startdate",
        first,
        "-enddate",
        last,
        "-keyfile",
        f"{folder}/server.key",
    ]
    commands = []
    for name, subject, signer in (
        ("server", "/CN=sparklanes image registry", ["-selfsign"]),
        ("client", "/CN=sparklanes peer", ["-cert", f"{folder}/server.pem"]),
    ):
        file = f"{folder}/{name}"
        commands += [
            ["openssl", "req", "-new", *config, *key, "-subj", subject, "-keyout", f"{file}.key", "-out", f"{file}.csr"],
            [*sign, *signer, "-extensions", name, "-in", f"{file}.csr", "-out", f"{file}.pem"],
        ]
    return commands


def pushed_digest(text: str) -> str:
    """The digest in what `docker push` prints, empty where it names none."""
    found = _PUSHED.findall(text)
    return str(found[-1]) if found else ""


@contextlib.contextmanager
def client_certificates(
    registry: str, ca: str, certificate: str, key: str, write: bool = True, root: Path = CERTIFICATES
) -> Iterator[None]:
    """Docker trusts `registry`, and can show who it is, while the block lasts. NotOurs where somebody else has certificates for it."""
    folder = root / registry
    if write:
        ours.claim(folder, TRUST)
    try:
        if write:
            for name, text in (("ca.crt", ca), ("client.cert", certificate), ("client.key", key)):
                write_atomically(folder / name, text, 0o600)
        yield
    finally:
        if write:
            with contextlib.suppress(OSError):
                ours.remove(folder, TRUST)


def stale_certificates(now: float, root: Path = CERTIFICATES) -> list[Path]:
    """Certificates of ours that a taker left which lost its power. They are no good by now, and would refuse whatever listens there next."""
    found = []
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        with contextlib.suppress(FileNotFoundError):
            if ours.is_ours(folder, TRUST) and now - folder.stat().st_mtime > 86400 * VALID_DAYS:
                found.append(folder)
    return found


def answers(address: str, port: int, folder: Path) -> bool:
    """Whether a registry with our certificate answers there."""
    context = ssl.create_default_context(cafile=str(folder / "server.pem"))
    context.load_cert_chain(folder / "client.pem", folder / "client.key")
    try:
        with (
            socket.create_connection((address, port), timeout=2) as plain,
            context.wrap_socket(plain, server_hostname=address) as secure,
        ):
            secure.sendall(f"GET /v2/ HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
            return secure.recv(16).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def serve(args: dict[str, Any], _secrets: dict[str, str], report: Reporter) -> dict[str, Any]:
    """Run the registry until stopped or idle. The function that `jobs` runs."""
    folder = Path(args["folder"])
    write_atomically(folder / "config.yml", config(folder, args["address"], args["port"]))
    log = folder / "registry.log"
    with log.open("ab") as output:
        try:
            daemon = subprocess.Popen(
                [args["program"], "serve", str(folder / "config.yml")], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        except OSError as error:
            raise JobError(f"{args['program']} does not run: {error.strerror}") from error
    try:
        with guarding_memory():
            address, port = args["address"], args["port"]
            here = partial(answers, address, port, folder)
            wait_until(here, daemon, START_SECONDS, f"docker-registry does not serve {address} port {port}", log, report)
            report.phase("lend the image")
            asked = RequestLog(log, ASKED)
            return serve_until_idle(
                [daemon], "docker-registry", log, float(args["idle_seconds"]), report, lambda: bool(asked.news())
            )
    finally:
        daemon.terminate()
        daemon.wait()
        with contextlib.suppress(OSError, ours.NotOurs):
            ours.remove(folder, STORE)
