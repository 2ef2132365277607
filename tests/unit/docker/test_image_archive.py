from __future__ import annotations

import hashlib
import os
import subprocess
import time
from pathlib import Path

import pytest
from ansible.module_utils.sparklanes.common import disk, ours
from ansible.module_utils.sparklanes.common.sizes import GIB
from ansible.module_utils.sparklanes.docker import archive as docker_archive
from ansible.module_utils.sparklanes.docker import registry as docker_registry
from ansible.module_utils.sparklanes.docker.archive import WITHHELD, ArchiveError, load, loaded_names, save


def docker_load(tmp_path: Path, needed: int) -> tuple[str, ...]:
    """A stand-in for `docker load`: like it, it takes nothing of an archive that was cut off."""
    script = tmp_path / "docker-load"
    script.write_text(
        f"""#!/bin/sh
cat > {tmp_path}/got
if [ $(stat -c %s {tmp_path}/got) -lt {needed} ]; then rm {tmp_path}/got; echo unexpected EOF; exit 1; fi
echo 'Loaded image: vllm-local:p2'
"""
    )
    script.chmod(0o755)
    return (str(script),)


@pytest.mark.parametrize("size", [WITHHELD + 1, 3 * 1024**2 + 17, 9 * 1024**2])
def test_an_archive_reaches_docker_byte_for_byte(tmp_path: Path, size: int) -> None:
    archive = tmp_path / "engine.tar"
    archive.write_bytes(os.urandom(size))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert load(archive, digest, str(tmp_path), command=docker_load(tmp_path, size)) == ["vllm-local:p2"]
    assert (tmp_path / "got").read_bytes() == archive.read_bytes()


def test_of_an_archive_with_another_hash_nothing_is_kept(tmp_path: Path) -> None:
    archive = tmp_path / "engine.tar"
    archive.write_bytes(os.urandom(1024**2))
    with pytest.raises(ArchiveError, match="Nothing was kept"):
        load(archive, "0" * 64, str(tmp_path), command=docker_load(tmp_path, 1024**2))
    assert not (tmp_path / "got").exists()


def test_docker_that_stops_reading_is_said(tmp_path: Path) -> None:
    archive = tmp_path / "engine.tar"
    archive.write_bytes(bytes(8 * 1024**2))
    with pytest.raises(ArchiveError, match="could not load"):
        load(archive, hashlib.sha256(archive.read_bytes()).hexdigest(), str(tmp_path), command=("false",))


@pytest.mark.parametrize(
    ("content", "sha256", "text"),
    [(None, "0" * 64, "no such file"), (b"x", "0" * 64, "too few"), (bytes(WITHHELD * 2), "0x", "64 hex digits")],
)
def test_what_is_no_archive_never_reaches_docker(tmp_path: Path, content: bytes | None, sha256: str, text: str) -> None:
    archive = tmp_path / "engine.tar"
    if content is not None:
        archive.write_bytes(content)
    with pytest.raises(ArchiveError, match=text):
        load(archive, sha256, str(tmp_path), command=("touch", str(tmp_path / "asked")))
    assert not (tmp_path / "asked").exists()


def test_room_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _: 30 * GIB)
    docker_archive.refuse_without_room(10 * 1024**3, 10, str(tmp_path))
    with pytest.raises(ArchiveError, match=r"30\.0 GiB free, expected 32\.0"):
        docker_archive.refuse_without_room(11 * 1024**3, 10, str(tmp_path))


def test_a_docker_that_does_not_say_where_images_lie_has_no_room() -> None:
    with pytest.raises(ArchiveError, match="does not say where its images lie"):
        docker_archive.refuse_without_room(1, 0, "")


def test_saving_gives_the_hash_and_a_failed_one_no_file(tmp_path: Path) -> None:
    target = tmp_path / "store/engine.tar"
    digest = save("hello", target, ("printf", "%s"))
    assert target.read_bytes() == b"hello"
    assert digest == hashlib.sha256(b"hello").hexdigest()
    with pytest.raises(ArchiveError, match="no such image"):
        save("x", tmp_path / "store/other.tar", ("sh", "-c", "echo half; echo no such image >&2; exit 1"))
    assert [path.name for path in target.parent.iterdir()] == ["engine.tar"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Loaded image: a/b:v1\nLoaded image: c:d\n", ["a/b:v1", "c:d"]),
        ("Loaded image ID: sha256:0123\n", ["sha256:0123"]),
        ("open: no such file", []),
    ],
)
def test_names_of_what_was_loaded(text: str, names: list[str]) -> None:
    assert loaded_names(text) == names


def test_cache_is_let_go_while_memory_is_short_and_only_then(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "sys/vm").mkdir(parents=True)

    def guarded(free_gib: int) -> str:
        (proc / "sys/vm/drop_caches").write_text("")
        (proc / "meminfo").write_text(f"MemTotal: 126877696 kB\nMemFree: {free_gib * 1024**2} kB\nCached: 50000000 kB\n")
        with docker_archive.guarding_memory(tmp_path, seconds=0.02):
            limit = time.monotonic() + (5 if free_gib < 4 else 0.2)
            while not (proc / "sys/vm/drop_caches").read_text() and time.monotonic() < limit:
                time.sleep(0.01)
        return (proc / "sys/vm/drop_caches").read_text()

    assert guarded(40) == ""
    assert guarded(2) == "1\n"


# The registry that lends


def test_certificates_are_for_this_address_and_this_staging(tmp_path: Path) -> None:
    (tmp_path / "openssl.cnf").write_text(docker_registry.openssl_config(tmp_path, "10.93.2.11"))
    (tmp_path / "index.txt").touch()
    for command in docker_registry.certificate_commands(tmp_path, time.time()):
        subprocess.run(command, check=True, capture_output=True)
    assert {path.stat().st_mode & 0o077 for path in tmp_path.glob("*.key")} == {0}
    shown = subprocess.run(
        ["openssl", "x509", "-in", tmp_path / "server.pem", "-noout", "-text"], check=True, capture_output=True, text=True
    )
    assert "IP Address:10.93.2.11" in shown.stdout
    # A taker whose clock is half a day behind takes it; nobody takes it for long.
    for days, good in ((-0.5, True), (1.9, True), (2.1, False), (-1.1, False)):
        at = str(int(time.time() + 86400 * days))
        command = ["openssl", "verify", "-attime", at, "-CAfile", tmp_path / "server.pem", tmp_path / "client.pem"]
        assert (subprocess.run(command, check=False, capture_output=True).returncode == 0) == good
    verified = subprocess.run(
        ["openssl", "verify", "-CAfile", tmp_path / "server.pem", tmp_path / "client.pem"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert verified.stdout.strip().endswith("OK")


def test_the_registry_listens_on_one_address_and_asks_for_a_certificate(tmp_path: Path) -> None:
    text = docker_registry.config(tmp_path, "fd00::11", 18731)
    assert '"[fd00::11]:18731"' in text
    assert "clientcas" in text
    with pytest.raises(ValueError, match="IP"):
        docker_registry.config(tmp_path, "spark-1\n", 18731)


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        ("staged: digest: sha256:" + "a" * 64 + " size: 1574", "sha256:" + "a" * 64),
        ("The push refers to repository", ""),
    ],
)
def test_the_digest_of_a_push(text: str, digest: str) -> None:
    assert docker_registry.pushed_digest(text) == digest


def test_certificates_are_gone_after_the_block_also_when_it_fails(tmp_path: Path) -> None:
    def pull() -> None:
        with docker_registry.client_certificates("10.0.0.1:1", "CA", "C", "K", True, tmp_path):
            assert (tmp_path / "10.0.0.1:1/client.key").stat().st_mode & 0o777 == 0o600
            raise RuntimeError

    with pytest.raises(RuntimeError):
        pull()
    assert list(tmp_path.iterdir()) == []


def test_certificates_of_somebody_else_for_that_address_stay(tmp_path: Path) -> None:
    (tmp_path / "10.0.0.1:1").mkdir()
    (tmp_path / "10.0.0.1:1/ca.crt").write_text("of a person")
    with (
        pytest.raises(ours.NotOurs, match=r"10\.0\.0\.1:1"),
        docker_registry.client_certificates("10.0.0.1:1", "CA", "C", "K", True, tmp_path),
    ):
        pytest.fail("it went on")
    assert (tmp_path / "10.0.0.1:1/ca.crt").read_text() == "of a person"


ACCESS = '10.93.2.12 - - [01/Dec/2026:10:00:00 +0000] "GET /v2/x/blobs/sha256:1 HTTP/1.1" 200 9 "" "docker/27.3"'
HANDSHAKE = "2026/12/01 10:00:00 http: TLS handshake error from 10.93.9.9:4000: "


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        (ACCESS, True),
        (ACCESS.replace("10.93.2.12", "fd00::12"), True),
        (HANDSHAKE + "tls: client didn't provide a certificate", False),
        (HANDSHAKE + f'tls: failed to verify certificate: x509: "{ACCESS}"', False),
        ('time="2026-12-01T10:00:00Z" level=info msg="listening on 10.93.2.11:18731, tls"', False),
    ],
)
def test_a_request_is_what_only_a_holder_of_a_certificate_can_cause(line: str, asked: bool) -> None:
    assert bool(docker_registry.ASKED.match(line)) == asked
