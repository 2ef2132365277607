# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a registry says of an image, asked of one on this machine."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import registry_info
from ansible.module_utils.sparklanes.common import web
from ansible.module_utils.sparklanes.docker import logins, remote
from ansible.module_utils.sparklanes.docker.logins import Login
from ansible.module_utils.sparklanes.docker.remote import RegistryError
from conftest import RunModule
from pin_servers import Registry, serving

DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def registry() -> Iterator[Registry]:
    kept = Registry()
    with serving(kept):
        yield kept


def client(registry: Registry, login: Login | None = None) -> remote.Registry:
    return remote.Registry(f"{registry.address}/{registry.name}", login, insecure=True)


def ask(
    registry: Registry, tag: str = "", pinned: str = "", login: Login | None = None, architecture: str = "arm64"
) -> dict[str, Any]:
    return remote.of_registry(client(registry, login), tag, pinned, architecture)


def test_of_an_index_the_manifest_that_a_spark_pulls_is_the_digest(registry: Registry) -> None:
    arm, amd = registry.image(created="2026-08-28T10:00:00Z"), registry.image("amd64")
    index = registry.index((amd, "linux/amd64", ""), (DIGEST, "unknown/unknown", "an attestation"), (arm, "linux/arm64/v8", ""))
    registry.tags["v11"] = index
    now = ask(registry, "v11")["now"]
    assert (now["digest"], now["index"], now["date"][:10], now["bytes"]) == (arm, index, "2026-08-28", 5 << 30)
    assert now["id"] == json.loads(registry.blobs[arm][1])["config"]["digest"], "overlay2 knows it by that"
    assert ask(registry, "v11", architecture="amd64")["now"]["digest"] == amd


def test_a_manifest_alone_is_the_digest_itself(registry: Registry) -> None:
    registry.tags["v8"] = registry.image()
    now = ask(registry, "v8")["now"]
    assert (now["digest"], now["index"]) == (registry.tags["v8"], "")


@pytest.mark.parametrize(
    ("platforms", "chosen"),
    [
        (["linux/arm64", "linux/arm64/v8"], 0),
        (["linux/arm64/v9", "linux/arm64/v8"], 1),
        (["windows/arm64", "linux/arm/v7", "linux/arm64"], 2),
        (["linux/amd64", "windows/arm64", "linux/arm64/v9"], None),
        ([], None),
    ],
)
def test_the_platform_is_chosen_as_docker_does(platforms: list[str], chosen: int | None) -> None:
    entries = []
    for place, platform in enumerate(platforms):
        system, machine, *variant = platform.split("/")
        entries.append(
            {"digest": f"sha256:{place:064}", "platform": {"os": system, "architecture": machine, "variant": "".join(variant)}}
        )
    digest, told = remote.choose({"manifests": entries}, "arm64")
    assert digest == ("" if chosen is None else f"sha256:{chosen:064}")
    assert told == platforms


@pytest.mark.parametrize(
    "index",
    [{}, {"manifests": 5}, {"manifests": [5, {}, {"platform": 5}, {"platform": {"os": "linux", "architecture": "arm64"}}]}],
)
def test_an_odd_index_has_no_image(index: dict[str, Any]) -> None:
    assert remote.choose(index, "arm64")[0] == ""


def test_no_image_for_a_spark(registry: Registry) -> None:
    registry.tags |= {"x86": registry.image("amd64"), "both": registry.index((registry.image("amd64"), "linux/amd64", ""))}
    with pytest.raises(RegistryError, match="x86 has no image for linux/arm64; it is built for linux/amd64"):
        ask(registry, "x86")
    with pytest.raises(RegistryError, match="both has no image for linux/arm64; it is for linux/amd64"):
        ask(registry, "both")


def test_a_tag_that_is_not_there_names_the_nearest(registry: Registry) -> None:
    registry.tags |= {"sm121-v8": registry.image(), "sm121-v11-dflash2": registry.image()}
    with pytest.raises(
        RegistryError, match=r"sm121-v11-dflash: not there \(404, MANIFEST_UNKNOWN\)\. .*It has 2 tags, among them"
    ) as refused:
        ask(registry, "sm121-v11-dflash")
    assert "Did you mean sm121-v11-dflash2?" in str(refused.value)
    registry.tags.clear()
    with pytest.raises(RegistryError, match="It was deleted or never pushed"):
        ask(registry, "gone")
    with pytest.raises(RegistryError, match="is no tag"):
        ask(registry, "../x")


def test_a_tag_that_moves_while_it_is_asked_about_is_refused(registry: Registry) -> None:
    first, second = registry.image(), registry.image(created="2026-09-30T00:00:00Z")
    registry.tags["main"] = first

    def move(kept: Registry, reference: str) -> None:
        kept.tags["main"] = second

    registry.on_manifest = move
    with pytest.raises(RegistryError, match=r"main moved while it was asked about, from sha256:.*ask again"):
        ask(registry, "main")


def test_what_is_pinned_still_there_moved_or_gone(registry: Registry) -> None:
    old, new = registry.image(created="2026-08-26T00:00:00Z"), registry.image(created="2026-09-30T00:00:00Z")
    registry.tags["v1"] = index = registry.index((new, "linux/arm64", ""))
    found = ask(registry, "v1", old)
    assert (found["now"]["digest"], found["pinned"]["digest"], found["pinned"]["date"][:10]) == (new, old, "2026-08-26")
    assert ask(registry, "v1", index)["pinned"]["digest"] == new, "a pin of the index is that image too"
    assert "not there" in ask(registry, pinned=DIGEST)["pinned"]["error"]


@pytest.mark.parametrize("auth", ["bearer", "basic"])
def test_a_private_registry_gets_the_login_and_nobody_else(registry: Registry, auth: str) -> None:
    registry.tags["v1"], registry.auth, registry.login = registry.image(), auth, "me:secret"
    with pytest.raises(RegistryError, match=r"access denied .*without a login.*engine_image_logins"):
        ask(registry, "v1")
    with pytest.raises(RegistryError, match="asked as me") as refused:
        ask(registry, "v1", login=Login("me", "wrong"))
    assert "wrong" not in str(refused.value)
    assert ask(registry, "v1", login=Login("me", "secret"))["now"]["digest"] == registry.tags["v1"]
    assert "secret" not in repr(Login("me", "secret"))


def test_a_registry_for_everybody_gives_a_token_too(registry: Registry) -> None:
    registry.tags["v1"], registry.auth = registry.image(), "bearer"
    assert ask(registry, "v1")["now"]
    assert len([path for path in registry.paths() if path.startswith("/token")]) == 1, "one token for all questions"


def test_a_password_goes_to_no_realm_of_somebody_else(registry: Registry) -> None:
    """`localhost` is another host than 127.0.0.1, and speaks for it only where the site says so."""
    registry.tags["v1"], registry.auth, registry.login = registry.image(), "bearer", "me:secret"
    registry.realm = f"http://localhost:{registry.address.rpartition(':')[2]}/token"
    with pytest.raises(RegistryError, match="access denied"):
        ask(registry, "v1", login=Login("me", "secret"))
    assert all(not secret.startswith("Basic") for _, _, secret in registry.asked)
    assert ask(registry, "v1", login=Login("me", "secret", realm="localhost"))["now"]


@pytest.mark.parametrize(
    ("host", "realm", "speaks"),
    [
        ("docker.io", "auth.docker.io", True),
        ("ghcr.io", "ghcr.io", True),
        ("registry.gitlab.com", "gitlab.com", True),
        ("example.com:5000", "auth.example.com", True),
        ("a.github.io", "b.github.io", False),
        ("registry.example.com", "com", False),
        ("ghcr.io", "evil.test", False),
        ("ghcr.io", "evilghcr.io", False),
    ],
)
def test_who_speaks_for_a_registry(host: str, realm: str, speaks: bool) -> None:
    assert remote.Registry(f"{host}/owner/x", Login("a", "b")).speaks_for(realm) is speaks


def test_a_password_is_not_sent_in_the_open() -> None:
    with pytest.raises(RegistryError, match=r"without TLS.*over_http: true"):
        remote.Registry("registry.lan:5000/engine", Login("a", "b"), insecure=True)._refuse_open("http://registry.lan:5000")
    remote.Registry("registry.lan:5000/engine", Login("a", "b", over_http=True), insecure=True)._refuse_open(
        "http://registry.lan:5000"
    )


def test_a_realm_without_tls_of_a_registry_with_tls_is_refused() -> None:
    refusal = web.Refused("https://r.test/v2/", 401, _headers('Bearer realm="http://r.test/token"'), b"", 1)
    with pytest.raises(RegistryError, match="which is no https:// address"):
        remote.Registry("r.test/owner/x")._answer_to(refusal)


def _headers(challenge: str) -> Any:
    from email.message import Message

    made = Message()
    made["WWW-Authenticate"] = challenge
    return made


def test_other_bytes_than_their_name_are_refused(registry: Registry) -> None:
    digest = registry.image()
    registry.tags["v1"] = digest
    registry.first = [("/manifests/", 200, {"Docker-Content-Digest": DIGEST}, registry.blobs[digest][1])]
    with pytest.raises(RegistryError, match="damages or replaces images"):
        ask(registry, "v1")
    registry.first = [("/blobs/", 200, {}, b'{"os": "linux", "architecture": "arm64"}')]
    with pytest.raises(RegistryError, match="its configuration is not"):
        ask(registry, "v1")
    registry.first = [("/manifests/", 200, {}, b"<html>")]
    with pytest.raises(RegistryError, match="is no JSON"):
        ask(registry, "v1")
    registry.tags["v0"] = registry.put(
        {"schemaVersion": 1, "fsLayers": []}, "application/vnd.docker.distribution.manifest.v1+json"
    )
    with pytest.raises(RegistryError, match="of an old kind"):
        ask(registry, "v0")


def test_a_busy_registry_is_waited_for(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(web.time, "sleep", waited.append)
    registry.tags["v1"] = registry.image()
    registry.first = [("/manifests/", 429, {"Retry-After": "12"}, b"")]
    assert ask(registry, "v1")["now"]
    assert waited == [12.0]
    registry.first = [("/manifests/", 429, {"Retry-After": "9999"}, b'{"errors":[{"code":"TOOMANYREQUESTS"}]}')]
    with pytest.raises(RegistryError, match=r"refuses more for now \(429, TOOMANYREQUESTS\)\. A login raises the limit"):
        ask(registry, "v1")


def test_a_registry_of_this_machine_needs_no_tls_and_another_one_says_what_helps(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.tags["v1"] = registry.image()
    here = remote.Registry(f"{registry.address}/{registry.name}")
    assert remote.of_registry(here, "v1", "", "arm64")["now"]
    monkeypatch.setattr(remote, "is_local", lambda _: False)
    with pytest.raises(RegistryError, match="engine_image_insecure_registries"):
        remote.of_registry(remote.Registry(f"{registry.address}/{registry.name}"), "v1", "", "arm64")
    with pytest.raises(RegistryError, match=r"does not answer .*Check its name"):
        remote.of_registry(remote.Registry("127.0.0.1:9/engine", insecure=True), "v1", "", "arm64")


def test_the_configuration_tells_what_it_can(registry: Registry) -> None:
    env = ["PATH=/bin", "CUDA_VERSION=13.0.2", "NCCL_VERSION=2.28", "HF_TOKEN=hf_x", "VLLM_API_KEY=k"]
    labels = {"org.opencontainers.image.revision": "abc\x1b[31m", "dflash2.port": "5", "maintainer": "me", "vllm.token": "s"}
    registry.tags["v1"] = registry.image(Env=env, Labels=labels, Entrypoint=["vllm", "serve"])
    now = ask(registry, "v1")["now"]
    assert now["entrypoint"] == ["vllm", "serve"]
    assert now["versions"] == {"CUDA_VERSION": "13.0.2", "NCCL_VERSION": "2.28"}
    assert now["labels"] == {"org.opencontainers.image.revision": "abc", "dflash2.port": "5"}
    assert remote.told_by({"config": {"Env": 5, "Labels": [], "Entrypoint": "x"}}) == {
        "entrypoint": [],
        "labels": {},
        "versions": {},
    }


# --- logins ---

BASIC = base64.b64encode(b"me:from docker").decode()


@pytest.mark.parametrize(
    ("host", "given", "kept", "password"),
    [
        ("r.test", {"r.test": {"username": "me", "password": "p"}}, {"auths": {"r.test": {"auth": BASIC}}}, "p"),
        ("r.test", {}, {"auths": {"r.test": {"auth": BASIC}}}, "from docker"),
        ("r.test", {}, {"auths": {"https://r.test": {"auth": BASIC}}}, "from docker"),
        ("docker.io", {}, {"auths": {"https://index.docker.io/v1/": {"auth": BASIC}}}, "from docker"),
        ("r.test", {}, {"auths": {"other.test": {"auth": BASIC}}}, None),
        ("r.test", {"r.test": "x"}, {"auths": []}, None),
        ("r.test", {}, {"auths": {"r.test": {"auth": "###"}}}, None),
        ("r.test", {}, {"auths": {"r.test": {}}}, None),
    ],
)
def test_a_login_is_the_sites_own_or_what_docker_kept(host: str, given: Any, kept: Any, password: str | None) -> None:
    found = logins.login_of(host, given, kept)
    assert (found.password if found else None) == password


@pytest.mark.parametrize(
    ("kept", "program"),
    [
        ({"credsStore": "pass"}, "docker-credential-pass"),
        ({"credHelpers": {"r.test": "x"}}, "docker-credential-x"),
        ({"credsStore": "../evil"}, ""),
        ({}, ""),
    ],
)
def test_a_program_of_docker_that_keeps_passwords(kept: Any, program: str) -> None:
    assert logins.helper_of("r.test", kept)[0] == program


def module(run_module: RunModule, registry: Registry, tmp_path: Path, **more: Any) -> dict[str, Any]:
    args = {"repository": f"{registry.address}/{registry.name}", "insecure": [registry.address], "docker_config": str(tmp_path)}
    made: dict[str, Any] = run_module(registry_info, {**args, **more})
    assert made["changed"] is False
    return dict(made["image"])


def test_the_module_asks_with_what_docker_keeps(
    run_module: RunModule, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.tags["v1"], registry.auth, registry.login = registry.image(), "bearer", "me:it's secret"
    assert "access denied" in module(run_module, registry, tmp_path, tag="v1")["error"]
    helper = tmp_path / "docker-credential-mine"
    helper.write_text(
        f'#!/bin/sh\nread name\n[ "$name" = {registry.address} ] && echo \'{json.dumps({"Username": "me", "Secret": "it%s secret"})}\' | sed "s/%/\'/"\n'
    )
    helper.chmod(0o755)
    (tmp_path / "config.json").write_text('{"credsStore": "mine"}')
    monkeypatch.setenv("PATH", f"{tmp_path}:{registry_info.os.environ['PATH']}")
    assert module(run_module, registry, tmp_path, tag="v1")["error"] == ""
    given = {registry.address: {"username": "me", "password": "it's secret"}}
    assert module(run_module, registry, tmp_path, tag="v1", logins=given)["now"]["digest"] == registry.tags["v1"]
