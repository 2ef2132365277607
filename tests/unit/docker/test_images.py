from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import engine_image_pull
import image_registry as image_registry_module
import pytest
from ansible.module_utils.sparklanes.common import commands, disk
from ansible.module_utils.sparklanes.common.ours import claim
from ansible.module_utils.sparklanes.docker import images as docker_images
from ansible.module_utils.sparklanes.docker import registry as docker_registry
from ansible.module_utils.sparklanes.docker.containers import DockerError
from ansible.module_utils.sparklanes.docker.images import Listed, LocalImage, Reference
from ansible.module_utils.sparklanes.docker.store import ImageStore
from conftest import FIXTURES, RunModule
from hypothesis import given
from hypothesis import strategies as st

D1 = "sha256:905c02933be6021301db2dc284e24e3727467aa3a0f63b41d609885778a07bce"
D2 = "sha256:b0501f99fec5136f248f78d5850977a2ec32d55cd9a665f4a9ffef24cbdf7fe5"
REPO = "10.93.1.1:5000/engine"


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("ubuntu", "docker.io/library/ubuntu"),
        ("docker.io/ubuntu", "docker.io/library/ubuntu"),
        ("vllm/vllm-openai", "docker.io/vllm/vllm-openai"),
        ("index.docker.io/vllm/vllm-openai", "docker.io/vllm/vllm-openai"),
        ("ghcr.io/a/b", "ghcr.io/a/b"),
        ("localhost/engine", "localhost/engine"),
        (REPO, REPO),
    ],
)
def test_docker_shortens_names_and_we_do_not_mind(short: str, full: str) -> None:
    assert docker_images.canonical(short) == full


@pytest.mark.parametrize(
    "repository",
    [REPO, "ghcr.io/fujitsupolycom/sparkring-glm53-runtime", "vllm/vllm-openai", "ubuntu", "registry.lan/a/b_c/d--e"],
)
def test_usual_names_are_fine(repository: str) -> None:
    assert docker_images.problems(repository, D1) == []


@pytest.mark.parametrize(
    ("repository", "digest", "text"),
    [
        (REPO, "", "lane_image.digest is missing"),
        (REPO, "sha256:4def0ef6...", "a shortened digest names nothing"),
        (REPO, D1.upper(), "in lower case"),
        (REPO, D1[7:], "expected sha256: and 64 hex digits"),
        (REPO, D1 + "\n", "64 hex digits"),
        ("", D1, "lane_image.repository is missing"),
        (f"{REPO}:v11", D1, "with a tag"),
        (f"{REPO}@{D2}", D1, "Move the digest to lane_image.digest"),
        ("Engine Image", D1, "expected a name such as"),
        ("--privileged", D1, "expected a name such as"),
    ],
)
def test_what_does_not_name_an_image_is_refused(repository: str, digest: str, text: str) -> None:
    assert text in "; ".join(docker_images.problems(repository, digest))


@given(st.text(max_size=60), st.text(max_size=80))
def test_nothing_that_docker_could_take_for_an_option_passes(repository: str, digest: str) -> None:
    if not docker_images.problems(repository, digest):
        assert repository[0].isalnum()
        assert not set(f"{repository}@{digest}") & set(" \t\n\"'$`\\;|&<>")


def test_content_counts_and_not_the_name_it_came_under() -> None:
    image = LocalImage("sha256:i", [f"mirror.lan/engine@{D1}"])
    assert docker_images.known_by(image, D1)
    assert not docker_images.known_by(image, D2)
    assert docker_images.known_by(LocalImage(D1), D1)  # the containerd store shows the manifest's digest as ID
    assert docker_images.known_by(LocalImage("sha256:i"), "", ["sha256:i"])
    assert not docker_images.known_by(LocalImage("sha256:i"), D1)


def test_an_image_for_other_machines_is_told_from_a_wrong_digest() -> None:
    image = LocalImage("sha256:i", [f"{REPO}@{D1}"], architecture="amd64")
    made = {check.id: check for check in docker_images.judge("s1", image, str(Reference(REPO, D1)), "aarch64")}
    assert made["IMAGE.DIGEST"].status == "pass"
    assert made["IMAGE.ARCH"].status == "fail"
    assert made["IMAGE.ARCH"].expected == "arm64"


def test_moved_tag_and_loaded_image_are_named_and_not_used() -> None:
    listed = [Listed(REPO, "v11", D2, "sha256:b"), Listed(REPO, "old", "", "sha256:c"), Listed("other", "v11", D1, "sha256:d")]
    told = docker_images.others(Reference(REPO, D1), listed)
    assert f"{REPO}:v11 = {D2}" in told
    assert "no digest, loaded or built here" in told
    assert "other" not in told
    assert docker_images.others(Reference("elsewhere/x", D1), listed) == ""


def test_recorded_list_has_a_digest_and_no_tag() -> None:
    listed = docker_images.parse_list((FIXTURES / "docker/image-ls.jsonl").read_text())
    digest = "sha256:7010d9cf73a987fade85c599ae26b655893b68ac3c9f82bb82096efb49f236b7"
    image = "sha256:d499393b233144dd2b7afe8ea6509ac613a2865df2bf9f1f3cc4fb375f5179dd"
    assert listed == [Listed("10.93.1.1:5000/sparklanes/engine", "", digest, image)]


RECORDED = json.loads((FIXTURES / "docker/pull-errors.json").read_text())


@pytest.mark.parametrize("case", RECORDED, ids=[case["name"] for case in RECORDED])
def test_recorded_errors_get_their_meaning(case: dict[str, str]) -> None:
    assert case["means"] in docker_images.explain(case["stderr"])


def test_an_unknown_error_is_not_given_a_meaning() -> None:
    assert "do not know" in docker_images.explain("the moon is full")


@pytest.mark.parametrize("case", RECORDED, ids=[case["name"] for case in RECORDED])
def test_no_refusal_claims_a_wait_that_was_none(case: dict[str, str]) -> None:
    """A push is never repeated, and a pull that asks for hours of patience isn't either. What Docker kept of one that failed is its own affair."""
    once, again = docker_images.explain(case["stderr"]), docker_images.explain(case["stderr"], 4)
    for said in (once, again):
        assert "{" not in said
        assert not re.search(r"came is kept|stayed so", said)
    assert "waiting" not in once
    assert again.replace(", also after waiting", "") == once
    if "overloaded" in once:
        assert "cut the connection, also after waiting." in again


# The module, against a Docker whose answers are played


class PlayedDocker:
    def __init__(self) -> None:
        self.local: dict[str, dict[str, Any]] = {}
        self.registry: dict[str, dict[str, Any]] = {}
        self.listed: list[dict[str, str]] = []
        self.pulls: list[str] = []
        self.infos = 0
        self.stderr = "Error response from daemon: manifest unknown"
        self.seen: Path | None = None
        self.names_at_pull: list[str] = []
        self.tags: list[list[str]] = []
        self.manifests: dict[str, Any] = {}

    def run(self, argv: list[str], **_: Any) -> tuple[int, str, str]:
        if argv[1] == "info":
            self.infos += 1
            told = {"ServerVersion": "28", "CgroupDriver": "systemd", "Driver": "overlay2", "DockerRootDir": "/"}
            return 0, json.dumps(told), ""
        if argv[1:3] == ["image", "inspect"]:
            found = self.local.get(argv[3]) or next((one for one in self.local.values() if one["Id"] == argv[3]), None)
            return (0, json.dumps([found]), "") if found else (1, "[]", f"Error: No such image: {argv[3]}")
        if argv[1:3] == ["image", "ls"]:
            return 0, "".join(json.dumps(row) + "\n" for row in self.listed), ""
        if argv[1:3] == ["manifest", "inspect"]:
            return (0, json.dumps(self.manifests[argv[3]]), "") if argv[3] in self.manifests else (1, "", "no such manifest")
        if argv[1] == "tag":
            self.tags.append(argv[2:])
            return 0, "", ""
        self.pulls.append(argv[-1])
        if self.seen:
            self.names_at_pull = sorted(path.name for path in self.seen.iterdir())
        if argv[-1] not in self.registry:
            return 1, "", self.stderr
        self.local[argv[-1]] = self.registry[argv[-1]]
        return 0, argv[-1], ""


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PlayedDocker:
    played = PlayedDocker()
    monkeypatch.setitem(engine_image_pull.OPTIONS["images_dir"], "default", str(tmp_path / "images"))
    monkeypatch.setattr(commands, "run", played.run)
    monkeypatch.setattr(engine_image_pull.shutil, "which", lambda _: "/usr/bin/docker")
    return played


def image(digest: str = D1, architecture: str = "") -> dict[str, Any]:
    machine = docker_images.ARCHITECTURES.get(engine_image_pull.os.uname().machine, "?")
    return {"Id": "sha256:1d", "RepoDigests": [f"{REPO}@{digest}"], "Architecture": architecture or machine, "Size": 5}


ASK = {"repository": REPO, "digest": D1, "host": "spark-1"}


def test_pulls_once_and_then_nothing(docker: PlayedDocker, run_module: RunModule) -> None:
    docker.registry[f"{REPO}@{D1}"] = image()
    first = run_module(engine_image_pull, ASK)
    assert first["changed"]
    assert first["reference"] == f"{REPO}@{D1}"
    assert first["image"]["repo_digests"] == [f"{REPO}@{D1}"]
    assert [check["status"] for check in first["checks"]] == ["pass", "pass"]
    assert docker.infos == 1, "what Docker is does not change in between"
    assert not run_module(engine_image_pull, ASK)["changed"]
    assert docker.pulls == [f"{REPO}@{D1}"]
    assert docker.tags == [[f"{REPO}@{D1}", f"{REPO}:sparklanes-1d"]]  # docker image prune takes what has none


def test_check_mode_on_a_virgin_node_pulls_nothing(docker: PlayedDocker, run_module: RunModule) -> None:
    result = run_module(engine_image_pull, ASK, check=True)
    assert result["changed"]
    assert result["image"] is None
    assert result["reference"] == f"{REPO}@{D1}"
    assert docker.pulls == []


def test_a_digest_the_registry_does_not_know_names_all_four(docker: PlayedDocker, run_module: RunModule) -> None:
    docker.listed = [{"Repository": REPO, "Tag": "v11", "Digest": D2, "ID": "sha256:9"}]
    result = run_module(engine_image_pull, ASK)
    assert result["failed"]
    for part in (
        "spark-1: ",
        D1,
        "the registry does not know this digest",
        f"{REPO}:v11 = {D2}",
        "pin the digest that the push prints",
    ):
        assert part in result["msg"]


@pytest.mark.parametrize("digest", ["", "sha256:abc", "latest"])
def test_no_digest_no_docker_call(
    docker: PlayedDocker, run_module: RunModule, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "run", lambda *_, **__: pytest.fail("Docker was asked"))
    result = run_module(engine_image_pull, {**ASK, "digest": digest})
    assert result["failed"]
    assert result["msg"].startswith("spark-1: lane_image.digest")


def test_an_image_for_other_machines_is_refused(docker: PlayedDocker, run_module: RunModule) -> None:
    docker.registry[f"{REPO}@{D1}"] = image(architecture="s390x")
    result = run_module(engine_image_pull, ASK)
    assert result["failed"]
    assert "built for s390x" in result["msg"]


def test_docker_that_gives_another_image_is_refused(docker: PlayedDocker, run_module: RunModule) -> None:
    docker.local[f"{REPO}@{D1}"] = image(D2)
    result = run_module(engine_image_pull, ASK)
    assert result["failed"]
    assert "IMAGE.DIGEST" in result["msg"]
    assert D2 in result["msg"]


def test_never_pull_refuses_a_missing_image(docker: PlayedDocker, run_module: RunModule) -> None:
    result = run_module(engine_image_pull, {**ASK, "pull": "never"})
    assert result["failed"]
    assert "Run site.yml" in result["msg"]
    assert docker.pulls == []


def test_an_id_alone_names_an_image_that_no_registry_has(docker: PlayedDocker, run_module: RunModule) -> None:
    local = "sha256:" + "1d" * 32
    ask = {"repository": "vllm-local", "ids": [local], "host": "spark-1"}
    result = run_module(engine_image_pull, ask)
    assert result["failed"]
    assert "no registry has it" in result["msg"]
    docker.local[local] = {**image(), "Id": local, "RepoDigests": []}
    found = run_module(engine_image_pull, ask)
    assert not found["changed"]
    assert found["reference"] == local
    assert found["image"]["how"] == "id"


def test_a_look_says_what_is_here_and_brings_nothing(docker: PlayedDocker, run_module: RunModule) -> None:
    docker.registry[f"{REPO}@{D1}"] = image()
    result = run_module(engine_image_pull, {**ASK, "pull": "look"})
    assert not result["changed"]
    assert not result["here"]
    assert docker.pulls == []


@pytest.mark.parametrize("terabytes", [1, 1000])
def test_an_image_that_cannot_fit_is_not_pulled(
    docker: PlayedDocker, run_module: RunModule, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, terabytes: int
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _: 3 * 10**12)
    docker.registry[f"{REPO}@{D1}"] = image()
    machine = docker_images.ARCHITECTURES.get(engine_image_pull.os.uname().machine, "?")
    entries = [{"digest": f"sha256:{name}", "platform": {"architecture": name}} for name in ("s390x", machine)]
    docker.manifests = {
        f"{REPO}@{D1}": {"manifests": entries},
        f"{REPO}@sha256:{machine}": {"layers": [{"size": terabytes * 10**12}, {"size": 1}]},
    }
    result = run_module(engine_image_pull, ASK)
    assert bool(result.get("failed")) == (terabytes == 1000)
    assert bool(docker.pulls) != (terabytes == 1000)
    assert terabytes == 1 or "twice the image" in result["msg"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"layers": 5}', '{"layers": [{}]}', '{"manifests": [{"platform": null}]}', "null"]
)
def test_a_manifest_that_tells_no_size_is_none(text: str) -> None:
    assert docker_images.parse_manifest(text, "aarch64") is None


LENT = {
    "registry": "10.93.2.11:18731",
    "repository": "sparklanes/engine",
    "digest": D2,
    "id": "sha256:1d",
    "store": "overlay2",
    "ca": "CA",
    "certificate": "CERT",
    "key": "KEY",
}


@pytest.fixture
def certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(docker_registry.client_certificates.__wrapped__, "__defaults__", (True, tmp_path / "certs.d"))
    return tmp_path / "certs.d"


def test_what_another_spark_lends_is_known_by_the_lanes_digest_from_then_on(
    docker: PlayedDocker, run_module: RunModule, certificates: Path, tmp_path: Path
) -> None:
    lent = f"{LENT['registry']}/{LENT['repository']}@{D2}"
    docker.registry[lent] = {**image(), "RepoDigests": [lent]}
    docker.seen = certificates / LENT["registry"]
    ask = {**ASK, "images_dir": str(tmp_path / "images")}
    result = run_module(engine_image_pull, {**ask, "through": LENT})
    assert not result.get("failed"), result
    assert result["image"]["how"] == "record"
    assert docker.names_at_pull == [".sparklanes", "ca.crt", "client.cert", "client.key"]
    assert not docker.seen.exists()
    docker.local["sha256:1d"] = docker.registry[lent]
    again = run_module(engine_image_pull, ask)
    assert not again["changed"]
    assert again["reference"] == f"{REPO}@{D1}"


def test_a_lent_image_that_no_registry_has_is_known_again_in_the_other_kind_of_store(
    docker: PlayedDocker, run_module: RunModule, certificates: Path, tmp_path: Path
) -> None:
    lent = f"{LENT['registry']}/{LENT['repository']}@{D2}"
    docker.registry[lent] = {**image(), "RepoDigests": [lent]}
    ask = {"repository": "local", "ids": ["sha256:" + "e" * 64], "host": "spark-1", "images_dir": str(tmp_path / "images")}
    through = {**LENT, "id": "sha256:" + "e" * 64, "store": "io.containerd.snapshotter.v1 (overlayfs)"}
    result = run_module(engine_image_pull, {**ask, "through": through})
    assert not result.get("failed"), result
    assert result["image"]["how"] == "record"
    assert run_module(engine_image_pull, {**ask, "pull": "look"})["here"]


def test_an_image_that_changed_on_its_way_is_refused(
    docker: PlayedDocker, run_module: RunModule, certificates: Path, tmp_path: Path
) -> None:
    lent = f"{LENT['registry']}/{LENT['repository']}@{D2}"
    docker.registry[lent] = {**image(), "Id": "sha256:ee", "RepoDigests": [lent]}
    result = run_module(engine_image_pull, {**ASK, "through": LENT, "images_dir": str(tmp_path / "images")})
    assert result["failed"]
    assert "sha256:ee" in result["msg"]
    assert not (tmp_path / "images").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"state": "lent", "image": "x", "address": "127.0.0.1"}, "/proc/"),
        ({"state": "kept"}, "/proc/"),
        ({"state": "lent", "image": "x"}, "address"),
    ],
)
def test_a_registry_that_cannot_write_says_where(
    docker: PlayedDocker, run_module: RunModule, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(commands, "run", docker.run)
    docker.local["x"] = image()
    result = run_module(image_registry_module, {**options, "registry_dir": "/proc/x", "jobs_dir": "/proc/y"})
    assert result["failed"]
    assert words in result["msg"]


def test_a_registry_removes_no_folder_of_somebody_else(
    docker: PlayedDocker, run_module: RunModule, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(commands, "run", docker.run)
    docker.local["x"] = image()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/thesis.tex").write_text("years")
    for options in ({"state": "kept"}, {"state": "lent", "image": "x", "address": "127.0.0.1", "reserve_gib": 0}):
        where = {"registry_dir": str(tmp_path / "victim"), "jobs_dir": str(tmp_path / "jobs")}
        result = run_module(image_registry_module, {**options, **where})
        assert result["failed"]
        assert "no file .sparklanes in it says that it is ours" in result["msg"]
        assert (tmp_path / "victim/thesis.tex").exists()
    claim(tmp_path / "ours", docker_registry.STORE)
    where = {"registry_dir": str(tmp_path / "ours"), "jobs_dir": str(tmp_path / "jobs")}
    gone = run_module(image_registry_module, {"state": "kept", **where})
    assert gone["changed"]
    assert gone["actions"] == [f"Remove {tmp_path}/ours"]
    assert not run_module(image_registry_module, {"state": "kept", **where})["changed"]


# Where an image is found


@pytest.mark.parametrize(
    ("local", "listed", "record", "how"),
    [
        ({f"{REPO}@{D1}": "sha256:1"}, [], None, "name"),
        ({f"other/x@{D1}": "sha256:1"}, [("other/x", D1)], None, "digest"),
        ({"sha256:2": "sha256:2"}, [], None, "id"),
        ({"sha256:3": "sha256:3"}, [], "sha256:3", "record"),
        ({}, [("other/x", D2)], "sha256:3", None),
    ],
)
def test_an_image_is_recognised(
    tmp_path: Path, local: dict[str, str], listed: list[tuple[str, str]], record: str | None, how: str | None
) -> None:
    played = PlayedDocker()
    played.local = {name: {"Id": ident} for name, ident in local.items()}
    played.listed = [{"Repository": name, "Tag": "<none>", "Digest": digest, "ID": "sha256:1"} for name, digest in listed]
    store = ImageStore(played.run, tmp_path)
    if record:
        store.note(D1, id=record)
    found = store.find(f"{REPO}@{D1}", ["sha256:2"])
    assert (found.how if found else None) == how


def test_docker_that_does_not_answer_is_not_an_absent_image(tmp_path: Path) -> None:
    store = ImageStore(lambda *_a, **_k: (1, "", "Cannot connect to the Docker daemon"), tmp_path)
    with pytest.raises(DockerError, match="Cannot connect"):
        store.find(f"{REPO}@{D1}")


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        (
            {"id": "a", "repo_digests": [f"x@{D1}"], "how": "name"},
            {"id": "b", "repo_digests": [f"y@{D1}"], "how": "digest"},
            "pass",
        ),
        ({"id": "a", "repo_digests": [], "how": "id"}, {"id": "a", "repo_digests": [], "how": "id"}, "pass"),
        ({"id": "a", "repo_digests": [], "how": "id"}, {"id": "b", "repo_digests": [], "how": "id"}, "fail"),
        ({"id": "a", "repo_digests": [f"x@{D1}"], "how": "name"}, {"id": "b", "repo_digests": [], "how": "record"}, "pass"),
        ({"id": "a", "how": "id", "store": "overlay2"}, {"id": "b", "how": "id", "store": "overlayfs"}, "pass"),
    ],
)
def test_parity_of_images(first: dict[str, Any], second: dict[str, Any], status: str) -> None:
    first, second = {"store": "overlay2", **first}, {"store": "overlay2", **second}
    made = docker_images.parity({"s1": first, "s2": second, "s3": None})
    assert [(check.id, check.host, check.status) for check in made] == [("IMAGE.PARITY", "s2", status)]
    assert first["store"] in made[0].expected


def test_parity_needs_two() -> None:
    assert docker_images.parity({"s1": {"id": "a"}, "s2": None}) == []


BUSY = "Error response from daemon: toomanyrequests: retry-after: 30, allowed: 1/minute"


def test_a_registry_that_is_busy_is_asked_again_as_it_says(
    docker: PlayedDocker, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            docker.registry[f"{REPO}@{D1}"] = image()

    docker.stderr = BUSY
    monkeypatch.setattr(engine_image_pull.time, "sleep", sleep)
    result = run_module(engine_image_pull, ASK)
    assert (result["changed"], waited, len(docker.pulls)) == (True, [30.0, 30.0], 3)
    assert sum("Asked again after 30 s" in action for action in result["actions"]) == 2


@pytest.mark.parametrize(
    ("stderr", "pulls", "words"),
    [
        (BUSY, 4, "refuses more for now"),
        ("Error response from daemon: received unexpected HTTP status: 503 Service Unavailable", 4, "overloaded"),
        ("net/http: TLS handshake timeout", 4, "overloaded"),
        ("unexpected EOF", 4, "overloaded"),
        ("toomanyrequests: You have reached your unauthenticated pull rate limit.", 1, "docker login"),
        ("toomanyrequests: retry-after: 6h", 1, "refuses more for now"),
        ("Error response from daemon: manifest unknown", 1, "does not know this digest"),
    ],
)
def test_a_registry_that_stays_busy_is_named(
    docker: PlayedDocker, run_module: RunModule, monkeypatch: pytest.MonkeyPatch, stderr: str, pulls: int, words: str
) -> None:
    monkeypatch.setattr(engine_image_pull.time, "sleep", lambda _: None)
    docker.stderr = stderr
    result = run_module(engine_image_pull, ASK)
    assert (len(docker.pulls), words in result["msg"]) == (pulls, True), result["msg"]
