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
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.files import write_atomically
from ansible.module_utils.sparklanes.docker.archive import guarding_memory
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.serving import serve_until_idle, wait_until
from ansible.module_utils.sparklanes.jobs.state import JobError

JOB = "image-registry"
CERTIFICATES = Path("/etc/docker/certs.d")
VALID_DAYS = 2
START_SECONDS = 20.0

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


def certificate_commands(folder: Path, address: str) -> list[list[str]]:
    """openssl's: a certificate for this address that also signs, and one for clients. They are worth nothing after two days."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    days = ["-days", str(VALID_DAYS)]
    names = ["-addext", f"subjectAltName=IP:{ipaddress.ip_address(address)}"]
    server, client = folder / "server", folder / "client"
    files = ["-keyout", f"{server}.key", "-out", f"{server}.pem"]
    signer = ["-CA", f"{server}.pem", "-CAkey", f"{server}.key", "-CAcreateserial"]
    return [
        ["openssl", "req", "-x509", *key, *days, "-subj", "/CN=sparklanes image registry", *names, *files],
        ["openssl", "req", "-new", *key, "-subj", "/CN=sparklanes peer", "-keyout", f"{client}.key", "-out", f"{client}.csr"],
        ["openssl", "x509", "-req", "-in", f"{client}.csr", *signer, *days, "-out", f"{client}.pem"],
    ]


def pushed_digest(text: str) -> str:
    """The digest in what `docker push` prints, empty where it names none."""
    found = _PUSHED.findall(text)
    return str(found[-1]) if found else ""


@contextlib.contextmanager
def client_certificates(
    registry: str, ca: str, certificate: str, key: str, write: bool = True, root: Path = CERTIFICATES
) -> Iterator[None]:
    """Docker trusts `registry`, and can show who it is, while the block lasts."""
    folder = root / registry
    try:
        if write:
            for name, text in (("ca.crt", ca), ("client.cert", certificate), ("client.key", key)):
                write_atomically(folder / name, text, 0o600)
        yield
    finally:
        if write:
            shutil.rmtree(folder, ignore_errors=True)


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
            return serve_until_idle([daemon], "docker-registry", log, float(args["idle_seconds"]), report)
    finally:
        daemon.terminate()
        daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)
