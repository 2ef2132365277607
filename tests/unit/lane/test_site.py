"""One rule for every inventory: it has a folder of the site's own that is read and written to, and nothing in another is passed over silently."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.sparklanes.common.checks import Check
from ansible.module_utils.sparklanes.gates.preflight import unread_checks
from ansible.module_utils.sparklanes.lane import site
from conftest import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in (
        "group_vars",
        "inventory/shipped",
        "inventory/fleet/group_vars",
        "inventory/lanes",
        "inventory/sandbox",
        "mine",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "inventory/shipped/group_vars").symlink_to("../../group_vars")
    (tmp_path / "inventory/sandbox/group_vars").symlink_to("../../group_vars")
    (tmp_path / "mine/hosts.yml").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("sources", "folder"),
    [
        (("inventory/shipped", "inventory/fleet", "inventory/lanes"), "inventory/fleet"),
        (("inventory/sandbox",), "inventory/sandbox/site"),
        (("inventory/sandbox", "mine/hosts.yml"), "inventory/sandbox/site"),
        (("inventory/shipped", "mine/hosts.yml", "inventory/lanes"), "mine"),
        (("inventory/shipped", "inventory/lanes"), "inventory/fleet"),
        ((), "inventory/fleet"),
    ],
)
def test_each_inventory_has_a_folder_of_its_site(tree: Path, sources: tuple[str, ...], folder: str) -> None:
    assert site.site_folder([str(tree / source) for source in sources], tree) == tree / folder


def test_a_list_of_hosts_has_none(tree: Path) -> None:
    assert site.site_folder(["a,b,"], tree) == tree / "inventory/fleet"


def test_a_file_of_a_lane_in_the_other_folder_is_named(tree: Path) -> None:
    (tree / "inventory/fleet/group_vars/lane_mine.yml").touch()
    sandbox, fleet = [str(tree / "inventory/sandbox")], [str(tree / "inventory/fleet")]
    found = site.unread(sandbox, tree, ["mine"])
    assert [site.shown(path, tree) for path in found] == ["inventory/fleet/group_vars/lane_mine.yml"]
    assert site.unread(sandbox, tree, ["other"]) == []
    assert site.unread(fleet, tree, ["mine"]) == []
    (check,) = unread_checks(["inventory/fleet/group_vars/lane_mine.yml"], "inventory/sandbox/site")
    assert (check.id, check.status) == ("INVENTORY.UNREAD", "warn")
    assert "inventory/sandbox/site/group_vars" in check.remedy


@pytest.mark.parametrize("folder", ["group_vars", "host_vars"])
def test_a_remedy_names_the_folder_of_this_inventory(folder: str) -> None:
    check = Check("LANE.UNKNOWN", "s1", "fail", "x", "", f"Add one line to inventory/fleet/{folder}/lane_x.yml: y")
    (said,) = site.in_this_site([check], "inventory/sandbox/site")
    assert said.remedy == f"Add one line to inventory/sandbox/site/{folder}/lane_x.yml: y"


@pytest.mark.parametrize(
    "text",
    [
        # Hosts stand in no folder of a site's variables, and what is not the usual folder is somebody's own.
        "Write your Sparks into inventory/fleet/10-fleet.yml: script/init ADDRESS ADDRESS …",
        "inventory/fleet/ is empty",
        "Move /srv/old/inventory/fleet/group_vars/lane_x.yml here",
        "my-inventory/fleet/group_vars/lane_x.yml",
        "inventory/fleet/group_varsity/x.yml",
    ],
)
def test_only_files_of_variables_are_named_anew(text: str) -> None:
    check = Check("LANE.UNKNOWN", "s1", "fail", text, "", text)
    assert site.in_this_site([check], "inventory/sandbox/site") == [check]


def test_a_folder_is_said_as_it_is_named() -> None:
    check = Check("LANE.UNKNOWN", "s1", "fail", "x", "", "inventory/fleet/group_vars/lane_x.yml")
    assert site.in_this_site([check], r"/srv/a\1b")[0].remedy == r"/srv/a\1b/group_vars/lane_x.yml"


def test_what_a_site_says_of_the_sandbox_beats_what_is_shipped(tmp_path: Path) -> None:
    """Ansible itself, over the sandbox's own inventory files."""
    folder = tmp_path / "inventory"
    folder.mkdir()
    for name in ("00-groups.yml", "80-lanes.yml", "90-families.yml", "99-limit.yml", "group_vars"):
        (folder / name).symlink_to((ROOT / "inventory/sandbox" / name).resolve())
    hosts = {"all": {"children": {"sparks": {"hosts": {"n1": {}, "n2": {}}, "vars": {"lane": "sandbox_tiny"}}}}}
    (folder / "10-sandbox.yml").write_text(yaml.safe_dump(hosts))
    for path, data in {
        "group_vars/lane_sandbox_tiny.yml": {"lane_max_num_seqs": 3},
        "group_vars/lane_mine.yml": {"lane_id": "mine", "lane_family": "sandbox", "lane_max_num_seqs": 5},
        "host_vars/n2.yml": {"lane": "mine"},
    }.items():
        (folder / "site" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "site" / path).write_text(yaml.safe_dump(data))
    command = ["ansible-inventory", "-i", str(folder), "--list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    known = yaml.safe_load(done.stdout)["_meta"]["hostvars"]
    assert (known["n1"]["lane_id"], known["n1"]["lane_max_num_seqs"]) == ("sandbox_tiny", 3)
    assert (known["n2"]["lane_id"], known["n2"]["lane_max_num_seqs"]) == ("mine", 5), "its group is made for a lane of the site"


def test_a_new_lane_is_written_where_its_inventory_reads_it(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "10.yml").write_text("all: {children: {sparks: {hosts: {s1: {}}}}}")
    sources = [word for source in (ROOT / "inventory/shipped", fleet, ROOT / "inventory/lanes") for word in ("-i", str(source))]
    made = ["ansible-playbook", *sources, "playbooks/new_lane.yml", "-e", "new_lane_from=sandbox_tiny", "-e"]
    done = subprocess.run([*made, "new_lane=my-tiny"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout.count("is no name of a lane") == 1
    assert "Origin" not in done.stdout + done.stderr
    assert not (fleet / "group_vars").exists(), "nothing is left of what failed"
    done = subprocess.run([*made, "new_lane=mine"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lane_id: mine" in (fleet / "group_vars/lane_mine.yml").read_text()
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("See it: "))
    assert line.endswith("playbooks/render.yml -e lane=mine")
    assert f"-i {fleet}" in line
