from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import overlay_bundle
import overlay_stage
import pytest
import sparklanes as filters
from ansible.errors import AnsibleFilterError
from ansible.module_utils.sparklanes.common import commands
from ansible.module_utils.sparklanes.gates import readiness
from ansible.module_utils.sparklanes.rank import overlays
from ansible.module_utils.sparklanes.rank import spec as rank_spec
from ansible.module_utils.sparklanes.rank.overlays import OverlayFile
from conftest import RunModule

KERNEL = b"# a kernel\nDCP overlay: hybrid-aware\n"
TEMPLATE = b"{{ messages }}"
OTHER = b"# the image's own\n"
IMAGE = "10.93.1.1:5000/engine@sha256:" + "7" * 64


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "lanes/overlays/dcp").mkdir(parents=True)
    (tmp_path / "lanes/extras").mkdir()
    (tmp_path / "lanes/overlays/dcp/scheduler.py").write_bytes(KERNEL)
    (tmp_path / "lanes/extras/chat.jinja").write_bytes(TEMPLATE)
    return tmp_path


def lane(**kernel: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return (
        [{"source": "dcp/scheduler.py", "sha256": sha(KERNEL), "target": "/usr/lib/vllm/scheduler.py", **kernel}],
        [{"source": "lanes/extras/chat.jinja", "sha256": sha(TEMPLATE), "target": "/extras/chat.jinja"}],
    )


def planned(project: Path, **kernel: Any) -> list[dict[str, Any]]:
    files, wrong = overlays.plan(*lane(**kernel), str(project / "lanes/overlays"), str(project))
    assert wrong == []
    return [file.to_dict() for file in files]


# Rules


def test_a_mount_is_where_the_rendered_rank_looks_for_it() -> None:
    file = OverlayFile("dcp/scheduler.py", sha(KERNEL), "/x/scheduler.py")
    assert file.mount() == {
        "source": rank_spec.overlay_path(file.source, file.sha256),
        "target": "/x/scheduler.py",
        "read_only": True,
    }
    assert file.staged("/srv/overlays") == f"/srv/overlays/{sha(KERNEL)}/scheduler.py"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sha256": None}, "sha256 is unknown"),
        ({"sha256": sha(KERNEL)[:12]}, "expected 64 hex digits"),
        ({"replaces_sha256": "abc"}, "replaces_sha256 is 'abc'"),
        ({"target": "lib/x.py"}, "expected the full path"),
        ({"target": "/lib/../x.py"}, "expected the full path"),
        ({"target": "/lib/x.py/"}, "expected the full path"),
        ({"target": "/lib/x,y.py"}, "without blanks, commas and colons"),
        ({"target": "/extras/chat.jinja"}, "is also that of"),
        ({"target": "/models/tiny/chat_template.jinja"}, "Docker would have to make a file among them"),
        ({"source": ""}, "has no source"),
    ],
)
def test_what_no_spark_could_stage_is_refused(change: dict[str, Any], text: str) -> None:
    kernel, extra = lane(**change)
    made = [OverlayFile.of(item) for item in [*extra, *kernel]]
    assert text in "; ".join(overlays.faults(made, ["/models/tiny"]))


def test_a_good_lane_has_no_faults(project: Path) -> None:
    assert overlays.faults([OverlayFile.of(item) for item in planned(project)], ["/models/tiny", ""]) == []


# The controller


def test_another_hash_on_the_controller_names_file_found_and_expected(project: Path) -> None:
    changed = project / "lanes/overlays/dcp/scheduler.py"
    changed.write_bytes(b"edited")
    with pytest.raises(AnsibleFilterError) as told:
        filters.overlay_plan(*lane(), str(project / "lanes/overlays"), str(project))
    for part in (str(changed), sha(b"edited"), sha(KERNEL)):
        assert part in str(told.value)


@pytest.mark.parametrize("source", ["../secret", "/etc/shadow", "dcp/../../x"])
def test_an_overlay_never_comes_from_elsewhere(project: Path, source: str) -> None:
    with pytest.raises(AnsibleFilterError, match="expected a path below"):
        filters.overlay_plan(*lane(source=source), str(project / "lanes/overlays"), str(project))


def test_a_file_that_only_the_sparks_have_is_no_fault_of_the_plan(project: Path) -> None:
    (project / "lanes/overlays/dcp/scheduler.py").unlink()
    plan = filters.overlay_plan(*lane(), str(project / "lanes/overlays"), str(project))
    assert [bool(item["path"]) for item in plan] == [False, True]


def test_markers_are_looked_for(project: Path) -> None:
    with pytest.raises(AnsibleFilterError, match="'not there' is not in it"):
        filters.overlay_plan(*lane(markers=["DCP overlay", "not there"]), str(project / "lanes/overlays"), str(project))


# The way to a Spark


class Spark:
    """A root for overlays and a Docker whose image has one file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[str] = []
        self.inside: dict[str, bytes] = {"/usr/lib/vllm/scheduler.py": OTHER}

    def run(self, argv: list[str], **_: Any) -> tuple[int, str, str]:
        self.calls.append(argv[1])
        if argv[1:3] == ["image", "inspect"]:
            return 0, json.dumps([{"Id": "sha256:1", "RepoDigests": [IMAGE]}]), ""
        if argv[1] == "create":
            return 0, "box\n", ""
        if argv[1] == "cp":
            content = self.inside.get(argv[3].partition(":")[2])
            if content is None:
                return 1, "", "Error: No such container:path: box:/x"
            Path(argv[4]).write_bytes(content)
        return 0, "", ""


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spark:
    made = Spark(tmp_path / "spark/overlays")
    monkeypatch.setattr(commands, "run", made.run)
    return made


def ask(spark: Spark, plan: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"files": plan, "root": str(spark.root), "host": "spark-1", "image": IMAGE, "protected": ["/models/tiny"], **more}


def deliver(project: Path, spark: Spark, plan: list[dict[str, Any]], run_module: RunModule) -> dict[str, Any]:
    """What the role does: look, pack, send, lay down."""
    missing = run_module(overlay_stage, ask(spark, plan))["missing"]
    bundle = run_module(overlay_bundle, {"files": plan, "missing": missing, "folder": str(project / ".cache")})
    archive = spark.root / ".incoming.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(Path(bundle["archive"]).read_bytes())
    return run_module(overlay_stage, ask(spark, plan, archive=str(archive)))


def test_from_nothing_to_mounts_and_then_one_look_is_enough(project: Path, spark: Spark, run_module: RunModule) -> None:
    plan = planned(project)
    first = run_module(overlay_stage, ask(spark, plan))
    assert not first["changed"]  # looking changes nothing, and says what is missing
    assert first["missing"] == sorted([sha(KERNEL), sha(TEMPLATE)])
    result = deliver(project, spark, plan, run_module)
    assert result["changed"]
    staged = spark.root / sha(KERNEL) / "scheduler.py"
    assert staged.read_bytes() == KERNEL
    assert staged.stat().st_mode & 0o777 == 0o444
    assert result["mounts"][0] == {"source": str(staged), "target": "/usr/lib/vllm/scheduler.py", "read_only": True}
    assert not (spark.root / ".incoming.tar").exists()
    again = run_module(overlay_stage, ask(spark, plan))
    assert (again["changed"], again["missing"], again["mounts"]) == (False, [], result["mounts"])
    assert sorted(path.name for path in spark.root.rglob("*") if path.is_file()) == ["chat.jinja", "scheduler.py"]


def test_check_mode_on_a_virgin_node(project: Path, spark: Spark, run_module: RunModule) -> None:
    result = run_module(overlay_stage, ask(spark, planned(project)), check=True, diff=True)
    assert result["changed"]
    assert [action.split()[:2] for action in result["actions"]] == [
        ["Stage", "dcp/scheduler.py"],
        ["Stage", "lanes/extras/chat.jinja"],
    ]
    assert result["diff"]["before"] == ""
    assert not spark.root.exists()


def test_old_files_stay_when_the_lane_changes(project: Path, spark: Spark, run_module: RunModule) -> None:
    deliver(project, spark, planned(project), run_module)
    newer = KERNEL + b"# newer\n"
    (project / "lanes/overlays/dcp/scheduler.py").write_bytes(newer)
    deliver(project, spark, planned(project, sha256=sha(newer)), run_module)
    assert (spark.root / sha(KERNEL) / "scheduler.py").read_bytes() == KERNEL
    assert (spark.root / sha(newer) / "scheduler.py").read_bytes() == newer


def test_a_file_that_changed_on_the_spark_is_refused_and_not_mended(project: Path, spark: Spark, run_module: RunModule) -> None:
    plan = planned(project)
    deliver(project, spark, plan, run_module)
    staged = spark.root / sha(KERNEL) / "scheduler.py"
    staged.chmod(0o644)
    staged.write_bytes(b"tampered")
    for check in (True, False):
        result = run_module(overlay_stage, ask(spark, plan), check=check)
        assert result["failed"]
        for part in ("spark-1", str(staged), sha(b"tampered"), sha(KERNEL)):
            assert part in result["msg"]
    assert staged.read_bytes() == b"tampered"
    # What gate A makes of it, and made of it while a task called the failure none.
    for seen in (result, {**result, "failed": False, "failed_when_result": False}):
        row = readiness.staged("spark-1", "OVERLAYS.STAGED", seen)
        assert (row.status, sha(b"tampered") in row.found) == ("fail", True)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_file_that_lies_elsewhere_in_truth_is_refused(project: Path, spark: Spark, run_module: RunModule, what: str) -> None:
    """Its content is right; whoever owns the place that the link leads to can change it after that was seen."""
    plan = planned(project)
    deliver(project, spark, plan, run_module)
    staged = spark.root / sha(KERNEL) / "scheduler.py"
    moved = staged if what == "file" else staged.parent
    moved.rename(project / "elsewhere")
    moved.symlink_to(project / "elsewhere")
    result = run_module(overlay_stage, ask(spark, plan), check=True)
    assert result["failed"]
    leads = project / "elsewhere" if what == "file" else project / "elsewhere/scheduler.py"
    assert f"spark-1: {staged}: found a link that leads to {leads}, expected the file itself" in result["msg"]
    assert f"remove {staged.parent}" in result["msg"]
    assert readiness.staged("spark-1", "OVERLAYS.STAGED", result).status == "fail"


def test_a_link_to_nothing_is_a_missing_file(project: Path, spark: Spark, run_module: RunModule) -> None:
    plan = planned(project)
    staged = spark.root / sha(KERNEL) / "scheduler.py"
    staged.parent.mkdir(parents=True)
    staged.symlink_to("nowhere")
    assert sha(KERNEL) in run_module(overlay_stage, ask(spark, plan))["missing"]
    deliver(project, spark, plan, run_module)
    assert (staged.is_symlink(), staged.read_bytes()) == (False, KERNEL)


def test_a_root_that_is_itself_a_link_is_a_place_like_any_other(project: Path, spark: Spark, run_module: RunModule) -> None:
    (project / "disk").mkdir()
    spark.root.parent.mkdir(parents=True, exist_ok=True)
    spark.root.symlink_to(project / "disk")
    plan = planned(project)
    deliver(project, spark, plan, run_module)
    assert run_module(overlay_stage, ask(spark, plan), check=True)["missing"] == []


def test_gate_a_believes_only_a_look_that_found_every_file(project: Path, spark: Spark, run_module: RunModule) -> None:
    plan = planned(project)
    lacking = readiness.staged("spark-1", "OVERLAYS.STAGED", run_module(overlay_stage, ask(spark, plan), check=True))
    assert (lacking.status, "Stage dcp/scheduler.py" in lacking.found) == ("fail", True)
    deliver(project, spark, plan, run_module)
    good = run_module(overlay_stage, ask(spark, plan), check=True)
    assert readiness.staged("spark-1", "OVERLAYS.STAGED", good).status == "pass"


def test_what_was_damaged_on_the_way_gets_no_name(project: Path, spark: Spark, run_module: RunModule) -> None:
    plan = planned(project)
    archive = spark.root / ".incoming.tar"
    lying = project / "lying.py"
    lying.write_bytes(b"damaged")
    overlays.pack([OverlayFile("dcp/scheduler.py", sha(KERNEL), "/x", path=str(lying))], archive)
    result = run_module(overlay_stage, ask(spark, plan[:1], archive=str(archive)))
    assert result["failed"]
    assert sha(b"damaged") in result["msg"]
    assert list((spark.root / sha(KERNEL)).iterdir()) == []


@pytest.mark.parametrize(("given", "taken"), [("one text", ("one text",)), (5, ("5",)), (None, ()), (["a", 1], ("a", "1"))])
def test_a_single_marker_is_one_and_not_its_letters(given: Any, taken: tuple[str, ...]) -> None:
    assert OverlayFile.of({"markers": given}).markers == taken


@pytest.mark.parametrize("content", [b"", b"no archive at all" * 100])
def test_an_archive_that_is_none_is_said_to_be_damaged(
    project: Path, spark: Spark, run_module: RunModule, content: bytes
) -> None:
    archive = spark.root / ".incoming.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(content)
    result = run_module(overlay_stage, ask(spark, planned(project), archive=str(archive)))
    assert "spark-1: " in result["msg"]
    assert "is damaged" in result["msg"]


def test_a_bundle_without_a_needed_file_names_it(project: Path, run_module: RunModule) -> None:
    plan = planned(project)
    (project / "lanes/overlays/dcp/scheduler.py").unlink()
    result = run_module(overlay_bundle, {"files": plan, "missing": [sha(KERNEL)], "folder": str(project / ".cache")})
    assert result["failed"]
    assert "dcp/scheduler.py" in result["msg"]
    assert not (project / ".cache").exists()


def test_the_bundle_is_made_once_and_holds_only_what_is_missing(project: Path, run_module: RunModule) -> None:
    args = {"files": planned(project), "missing": [sha(TEMPLATE)], "folder": str(project / ".cache")}
    assert run_module(overlay_bundle, args, check=True)["changed"]
    assert not (project / ".cache").exists()
    first = run_module(overlay_bundle, args)
    assert first["changed"]
    assert not run_module(overlay_bundle, args)["changed"]
    with pytest.raises(ValueError, match="does not hold"):
        overlays.unpack(Path(first["archive"]), sha(KERNEL), project / "out/x")


# The image's own file


def test_overlay_for_this_image_is_compared_once_and_remembered(project: Path, spark: Spark, run_module: RunModule) -> None:
    plan = planned(project, replaces_sha256=sha(OTHER))
    first = run_module(overlay_stage, ask(spark, plan), check=True)
    assert first["actions"][0].startswith("Compare /usr/lib/vllm/scheduler.py")
    assert spark.calls == []
    deliver(project, spark, plan, run_module)
    assert spark.calls == ["image", "create", "cp", "rm"]
    assert not run_module(overlay_stage, ask(spark, plan), check=True)["changed"]
    assert spark.calls == ["image", "create", "cp", "rm"]


@pytest.mark.parametrize("inside", [None, b"another build"])
def test_overlay_for_another_image_is_refused_before_anything_is_staged(
    project: Path, spark: Spark, run_module: RunModule, inside: bytes | None
) -> None:
    spark.inside = {} if inside is None else {"/usr/lib/vllm/scheduler.py": inside}
    result = run_module(overlay_stage, ask(spark, planned(project, replaces_sha256=sha(OTHER))))
    assert result["failed"]
    assert ("no such file" if inside is None else sha(inside)) in result["msg"]
    assert sha(OTHER) in result["msg"]
    assert spark.calls[-1] == "rm"
    assert not (spark.root / sha(KERNEL)).exists()


def test_replacing_needs_an_image_by_digest(project: Path, spark: Spark, run_module: RunModule) -> None:
    result = run_module(overlay_stage, ask(spark, planned(project, replaces_sha256=sha(OTHER)), image="engine:latest"))
    assert result["failed"]
    assert "expected REPOSITORY@sha256" in result["msg"]
