from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import staged_prune
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.common.clock import now
from ansible.module_utils.sparklanes.common.locks import Busy, locked
from ansible.module_utils.sparklanes.common.ours import claim
from ansible.module_utils.sparklanes.docker.registry import STORE, TRUST
from ansible.module_utils.sparklanes.jobs import runner as jobs_runner
from ansible.module_utils.sparklanes.release import prune as release_prune
from ansible.module_utils.sparklanes.release import store as release_store
from ansible.module_utils.sparklanes.release.prune import Item, Needed
from ansible.module_utils.sparklanes.release.store import Store
from ansible.module_utils.sparklanes.release.transaction import Transaction
from conftest import RunModule
from staged_prune import Prune, size_of

DIGESTS = {
    name: "sha256:" + letter * 64 for name, letter in (("old", "a"), ("now", "b"), ("good", "c"), ("lane", "d"), ("box", "e"))
}


class Spark:
    """A Spark with two releases in use, one that nobody needs, and things staged for each and for nobody."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.images: dict[str, dict[str, Any]] = {}
        self.removed: list[str] = []
        self.box: dict[str, Any] = {}
        self.busy = False
        for letter, name in (("1", "old"), ("2", "now"), ("3", "good")):
            self.release(letter * 12, name)
        self.write("deployments/sparks/state.json", {"status": "serving", "current": "2" * 12, "last_good": "3" * 12})
        for name in DIGESTS:
            self.image(name)
        for name in ("lane", "nobody"):
            self.model(name)
        (root / "overlays/images").mkdir(parents=True)

    def write(self, name: str, data: dict[str, Any]) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data))

    def release(self, ident: str, name: str) -> None:
        overlay = self.root / "overlays" / (ident[0] * 64)
        cache = self.root / "jit" / name / "lane"
        mounts = [{"source": str(overlay / "x.py")}, {"source": str(self.root / "models" / name)}, {"source": str(cache)}]
        spec = {"image": f"registry/engine@{DIGESTS[name]}", "mounts": mounts, "jit_cache": str(cache)}
        self.write(f"releases/{ident}/rank.json", spec)
        overlay.mkdir(parents=True)
        (overlay / "x.py").write_text("x")
        cache.mkdir(parents=True)
        self.model(name)

    def model(self, name: str) -> None:
        folder = self.root / "models" / name
        folder.mkdir(parents=True)
        (folder / "w").write_bytes(bytes(8192))
        self.write(f"staged/{name}/STAGED.json", {"path": str(folder)})

    def image(self, name: str) -> None:
        ident = f"sha256:id-{name}"
        self.images[ident] = {"Id": ident, "RepoDigests": [f"registry/engine@{DIGESTS[name]}"], "Size": 2**30}
        self.write(f"images/{DIGESTS[name][7:]}.json", {"id": ident})

    def run(self, argv: list[str], **_: Any) -> tuple[int, str, str]:
        if argv[1:3] == ["image", "inspect"]:
            for image in self.images.values():
                if argv[3] in (image["Id"], *image["RepoDigests"]):
                    return 0, json.dumps([image]), ""
            return 1, "", f"No such image: {argv[3]}"
        if argv[1:3] == ["image", "rm"]:
            assert "--force" not in argv
            assert "-f" not in argv
            gone = next(ident for ident, image in self.images.items() if argv[3] in (ident, *image["RepoDigests"]))
            self.removed.append(gone)
            del self.images[gone]
            return 0, "", ""
        if argv[1] == "ps":
            return 0, "box\n", ""
        if argv[1] == "inspect":
            return (
                0,
                json.dumps([{"Id": "box", "Name": "/x", "Config": {"Image": f"registry/engine@{DIGESTS['box']}"}, **self.box}]),
                "",
            )
        if argv[0] == "systemctl":
            return 0, "active\n" if self.busy else "inactive\n", ""
        raise AssertionError(argv)


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spark:
    made = Spark(tmp_path)
    monkeypatch.setattr(commands, "run", made.run)
    return made


def ask(spark: Spark, **more: Any) -> dict[str, Any]:
    keep = {"keep": [str(spark.root / "models/lane")], "keep_images": [f"registry/engine@{DIGESTS['lane']}"]}
    return {
        "root": str(spark.root),
        "certificates_dir": str(spark.root / "certs.d"),
        "models_dir": str(spark.root / "models"),
        **keep,
        **more,
    }


GONE = [
    ("image", "sha256:id-old"),
    ("jit_cache", "jit/old/lane"),
    ("model", "models/nobody"),
    ("model", "models/old"),
    ("overlay", "overlays/" + "1" * 64),
    ("release", "1" * 12),
]


def named(spark: Spark, result: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((item["kind"], item["name"].removeprefix(f"{spark.root}/")) for item in result["items"])


def test_only_what_nobody_needs_is_listed(spark: Spark, run_module: RunModule) -> None:
    result = run_module(staged_prune, ask(spark))
    assert not result["changed"]
    assert named(spark, result) == GONE
    assert spark.removed == []


def test_check_mode_removes_nothing(spark: Spark, run_module: RunModule) -> None:
    result = run_module(staged_prune, ask(spark, state="pruned"), check=True)
    assert result["changed"]
    assert named(spark, result) == GONE
    assert spark.removed == []
    assert (spark.root / "models/old/w").exists()


def test_what_is_listed_goes_and_nothing_else(spark: Spark, run_module: RunModule) -> None:
    result = run_module(staged_prune, ask(spark, state="pruned"))
    assert result["changed"]
    assert spark.removed == ["sha256:id-old"]
    left = sorted(path.name for path in (spark.root / "models").iterdir())
    assert left == ["good", "lane", "now"]
    assert sorted(path.name for path in (spark.root / "staged").iterdir()) == ["good", "lane", "now"]
    again = run_module(staged_prune, ask(spark, state="pruned"))
    assert (again["changed"], again["items"]) == (False, [])


def test_one_kind_at_a_time(spark: Spark, run_module: RunModule) -> None:
    result = run_module(staged_prune, ask(spark, state="pruned", kinds=["overlay"]))
    assert named(spark, result) == [("overlay", "overlays/" + "1" * 64)]
    assert spark.removed == []


def test_nothing_is_removed_in_the_middle_of_a_launch(spark: Spark, run_module: RunModule) -> None:
    transaction = {"id": "t9", "phase": "boot", "controller": "desk", "opened": 1.0, "heartbeat": 1.0, "lease_seconds": 9.0}
    spark.write("deployments/sparks/transaction.json", transaction)
    result = run_module(staged_prune, ask(spark, state="pruned"))
    assert result["failed"]
    assert "t9" in result["msg"]
    assert (spark.root / "models/old").exists()


def test_no_launch_begins_while_something_is_removed(
    spark: Spark, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would look for what it needs before, and miss it after."""
    launch = Transaction("launch", "stop", "desk", 1.0, 1.0, 900.0)
    tried: list[str] = []
    remove = staged_prune.Prune.remove

    def impatient(path: Path, what: str) -> Any:
        return locked(path, what, seconds=0.05)

    def meanwhile(self: Any, item: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(release_store, "locked", impatient)
            with pytest.raises(Busy, match="removes what nobody needs"):
                Store("sparks", str(spark.root)).acquire(launch, now())
        tried.append(item.name)
        remove(self, item)

    monkeypatch.setattr(staged_prune.Prune, "remove", meanwhile)
    assert run_module(staged_prune, ask(spark, state="pruned"))["changed"]
    assert tried
    assert Store("sparks", str(spark.root)).acquire(launch, now())[0].id == "launch"


def test_a_model_elsewhere_is_never_named(spark: Spark, run_module: RunModule, tmp_path: Path) -> None:
    adopted = tmp_path / "home/hub/model"
    adopted.mkdir(parents=True)
    spark.write("staged/adopted/STAGED.json", {"path": str(adopted)})
    assert named(spark, run_module(staged_prune, ask(spark))) == GONE


def test_a_container_keeps_what_it_mounts_and_the_image_that_its_tag_once_meant(spark: Spark, run_module: RunModule) -> None:
    mounts = [{"Type": "bind", "Source": f"{spark.root}/models/nobody"}, {"Type": "tmpfs", "Source": ""}]
    spark.box = {"Config": {"Image": "engine:latest"}, "Image": "sha256:id-old", "Mounts": mounts, "State": {"Status": "exited"}}
    found = named(spark, run_module(staged_prune, ask(spark)))
    # Now the image that the container used before may go.
    assert found == sorted({*GONE, ("image", "sha256:id-box")} - {("image", "sha256:id-old"), ("model", "models/nobody")})


@pytest.mark.parametrize(
    "name", ["deployments/sparks/state.json", "deployments/sparks/transaction.json", f"releases/{'3' * 12}/rank.json"]
)
def test_what_cannot_be_read_may_refer_to_anything(spark: Spark, run_module: RunModule, name: str) -> None:
    (spark.root / name).write_text("{")
    result = run_module(staged_prune, ask(spark, state="pruned"))
    assert result["failed"]
    assert name in result["msg"]
    assert spark.removed == []
    assert (spark.root / "models/nobody").exists()


def test_a_release_in_use_without_its_spec_keeps_everything(spark: Spark, run_module: RunModule) -> None:
    (spark.root / f"releases/{'2' * 12}/rank.json").unlink()
    assert run_module(staged_prune, ask(spark, state="pruned"))["failed"]
    assert (spark.root / "models/now").exists()


def test_nothing_is_removed_while_something_is_staged(
    spark: Spark, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_runner, "SYSTEMD", spark.root)
    spark.write("jobs/stage/spec.json", {"job": "stage"})
    spark.busy = True
    result = run_module(staged_prune, ask(spark, state="pruned"))
    assert "job stage" in result["msg"]
    assert (spark.root / "models/nobody").exists()
    spark.busy = False
    assert named(spark, run_module(staged_prune, ask(spark))) == GONE


def test_what_a_staging_without_power_left_goes(spark: Spark, run_module: RunModule) -> None:
    claim(spark.root / "registry", STORE)
    (spark.root / "registry/blobs").mkdir()
    stale, young, other = (spark.root / "certs.d" / name for name in ("10.0.0.1:1", "10.0.0.2:1", "registry.example"))
    for folder in (stale, young):
        claim(folder, TRUST)
    other.mkdir()
    for folder in (stale, young, other):
        (folder / "ca.crt").write_bytes(bytes(4096))
    for folder in (stale, other):
        os.utime(folder, (time.time() - 86400 * 2.1,) * 2)
    for name in ("overlays/.incoming.tar", "jit/now/lane.tar", "registry/blobs/x"):
        (spark.root / name).write_bytes(bytes(8192))
    result = run_module(staged_prune, ask(spark, state="pruned", kinds=["leftover"]))
    assert {item["kind"] for item in result["items"]} == {"leftover"}
    assert len(result["items"]) == 4
    for name in ("overlays/.incoming.tar", "jit/now/lane.tar", "registry", "certs.d/10.0.0.1:1"):
        assert not (spark.root / name).exists()
    assert young.is_dir()
    assert other.is_dir()
    assert (spark.root / "jit/now/lane").is_dir()
    assert run_module(staged_prune, ask(spark, state="pruned", kinds=["leftover"]))["items"] == []


@pytest.mark.parametrize("name", ["overlays/.incoming.tar", "jit/now/lane.tar", "releases/gone"])
@pytest.mark.parametrize("kind", ["folder", "file", "nothing"])
def test_where_a_link_stands_it_goes_and_what_it_leads_to_stays(
    spark: Spark, run_module: RunModule, tmp_path: Path, name: str, kind: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x").write_bytes(bytes(1 << 20))
    target = {"folder": elsewhere, "file": elsewhere / "x", "nothing": elsewhere / "none"}[kind]
    place = spark.root / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)
    assert size_of(place) < 1 << 20
    prune = Prune.__new__(Prune)
    prune.root = spark.root
    prune.remove(
        Item("release" if name.startswith("releases/") else "leftover", place.name if "releases/" in name else str(place))
    )
    assert not place.is_symlink()
    assert (elsewhere / "x").exists()
    assert not run_module(staged_prune, ask(spark, state="listed", kinds=["leftover"]))["items"]


def test_a_registry_that_does_not_carry_our_mark_stays(spark: Spark, run_module: RunModule) -> None:
    (spark.root / "registry").mkdir()
    (spark.root / "registry/of-a-person").write_text("")
    assert run_module(staged_prune, ask(spark, state="pruned", kinds=["leftover"]))["items"] == []
    assert (spark.root / "registry/of-a-person").exists()


def test_weights_that_somebody_put_there_are_left_alone(spark: Spark, run_module: RunModule) -> None:
    folder = spark.root / "models/own"
    folder.mkdir()
    spark.write("staged/own/STAGED.json", {"path": str(folder), "source": "first look"})
    assert named(spark, run_module(staged_prune, ask(spark))) == GONE


def test_a_link_among_the_models_is_left_alone(spark: Spark, run_module: RunModule, tmp_path: Path) -> None:
    (tmp_path / "nas").mkdir()
    (spark.root / "models/linked").symlink_to(tmp_path / "nas")
    spark.write("staged/linked/STAGED.json", {"path": str(spark.root / "models/linked")})
    assert named(spark, run_module(staged_prune, ask(spark))) == GONE


@pytest.mark.parametrize(
    ("path", "needed"),
    [("/a/b", True), ("/a/b/c", True), ("/a", True), ("/a/bc", False), ("/x", False)],
)
def test_a_mount_needs_its_folder_and_what_is_below(path: str, needed: bool) -> None:
    assert Needed(paths={path}).refers_to(Item("model", "/a/b")) == needed


def test_the_table_tells_the_sum() -> None:
    assert release_prune.table([]) == "nothing to prune"
    assert "3.00 GiB" in release_prune.table([Item("model", "/a", 2**30).to_dict(), Item("image", "i", 2**31).to_dict()])
