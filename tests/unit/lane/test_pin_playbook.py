# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""playbooks/pin.yml under Ansible, against a Hub and a registry on this machine: what a person sees, and what stands in the file then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hub_info
import lane_pin
import pytest
import registry_info
import yaml
from ansible.errors import AnsibleFilterError
from ansible.module_utils.sparklanes.lane.catalogue import new_lane
from ansible.plugins.vars import host_group_vars
from conftest import FIXTURES, ROOT, RunModule
from inventories import Inventory, ansible_globals
from pin_servers import Hub, Registry, Repository, serving
from sparklanes import checks_failures, lane_preflight, pin_questions, pins  # filter_plugins/sparklanes.py
from test_filters import play

NVFP4, MTP, LARGE, SMALL = (
    "flash_nvfp4_dflash2_tp2",
    "flash_nvfp4_mtp_tp2",
    "flash_w4a16_dflash2_tp2_1m",
    "flash_w4a16_dflash2_tp2_262k",
)
SECRET = "hf_" + "t" * 30


def repositories() -> dict[str, Repository]:
    told = yaml.safe_load((FIXTURES / "lane/repositories.SYNTHETIC.yml").read_text(encoding="utf-8"))
    return {name: repository(entry) for name, entry in told.items()}


def repository(entry: dict[str, Any]) -> Repository:
    count, size = entry["shards"], int(entry["gib"] * 2**30) // entry["shards"]
    shards: dict[str, int | bytes] = {f"model-{place:05}-of-{count:05}.safetensors": size for place in range(1, count + 1)}
    return Repository(
        [(str(one), date, title) for one, date, title in entry["commits"]], {**shards, "config.json": b'{"made": "up"}'}
    )


class Site:
    """A fleet of two Sparks that exist nowhere: had anything been run on them, they would be unreachable."""

    def __init__(self, tmp_path: Path, hub: Hub, registry: Registry, run_module: RunModule) -> None:
        self.tmp_path, self.hub, self.registry, self.run_module = tmp_path, hub, registry, run_module
        self.variables: dict[str, Any] = {
            "model_weights_hub_endpoint": f"http://{hub.address}",
            "cache_directory": str(tmp_path / "cache"),
        }
        self.hosts = {"s1": {"ansible_host": "192.0.2.1"}, "s2": {"ansible_host": "192.0.2.2"}}
        # Of the image that a lane has pinned: no registry of the world is asked.
        self.image = json.dumps({"lane_image_override": {"repository": f"{registry.address}/{registry.name}"}})
        self.logins: dict[str, Any] = {}
        (tmp_path / "fleet").mkdir()

    def file(self, lane: str) -> Path:
        return self.tmp_path / "fleet/group_vars" / f"lane_{lane}.yml"

    def fleet(self, lane: str) -> dict[str, Any]:
        return {"all": {"children": {"sparks": {"vars": {**self.variables, "lane": lane}, "hosts": self.hosts}}}}

    def play(self, lane: str, *more: str) -> tuple[int, str]:
        """The playbook itself."""
        done = play(self.tmp_path, ROOT / "playbooks/pin.yml", "-e", self.image, *more, fleet=self.fleet(lane))
        assert "UNREACHABLE" not in done[1], done[1]
        return done

    def inventory(self, lane: str, *extra: str) -> Inventory:
        # Ansible keeps for a process which files there were.
        for key in [key for key in host_group_vars.FOUND if str(self.tmp_path) in key]:
            del host_group_vars.FOUND[key]
        host_group_vars.NAK.clear()
        (self.tmp_path / "fleet/10-fleet.yml").write_text(yaml.safe_dump(self.fleet(lane)), encoding="utf-8")
        return Inventory([ROOT / "inventory/shipped", self.tmp_path / "fleet", ROOT / "inventory/lanes"], extra)

    def ask(self, lane: str, *extra: str, token: str = "", **wanted: Any) -> dict[str, Any]:
        """What the playbook does up to the file, in this process."""
        with ansible_globals():
            made = self.inventory(lane, self.image, *extra)
            asked = pin_questions(made.hostvars, made.groups(), made.play_hosts(), made.sources, wanted, "hub")
            told = {"endpoint": f"http://{self.hub.address}", "token": token, "repositories": asked["repositories"]}
            models = self.run_module(hub_info, told)["repositories"] if asked["repositories"] else {}
            registry = {"insecure": [self.registry.address], "logins": self.logins, "docker_config": "/nowhere"}
            image = self.run_module(registry_info, {**asked["image"], **registry})["image"] if asked["image"] else {}
            places = {"lane_overlays": str(self.tmp_path), "lane_extras": str(self.tmp_path)}
            return pins(made.hostvars, made.play_hosts()[0], made.sources, wanted, models, image, places)

    def write(self, made: dict[str, Any], confirmed: bool = True) -> dict[str, Any]:
        folder = str(self.tmp_path / "cache/pins")
        args = {
            "path": made["path"],
            "content": made["content"],
            "was": made["was"],
            "values": made["given"],
            "confirmed": confirmed,
        }
        return self.run_module(lane_pin, {**args, "memory": f"{folder}/x.json", "backups": folder})

    def refusals(self, lane: str) -> list[str]:
        """What preflight says against a launch, with the site's files as they are now."""
        with ansible_globals():
            made = self.inventory(lane)
            checks = lane_preflight(made.hostvars, made.groups(), made.play_hosts(), made.sources, [], "launch")
        return checks_failures(checks)


@pytest.fixture
def site(tmp_path: Path, run_module: RunModule) -> Iterator[Site]:
    hub, registry = Hub(repositories=repositories()), Registry(name="tonyd2wild/vllm-glm53-flash")
    with serving(hub), serving(registry):
        yield Site(tmp_path, hub, registry, run_module)


def failed(made: dict[str, Any]) -> dict[str, str]:
    return {check["id"]: f"{check['found']} {check['remedy']}" for check in made["checks"] if check["status"] == "fail"}


def test_from_a_gap_to_a_lane_that_may_launch_without_an_editor(site: Site) -> None:
    """Shown, shown again as a difference, written once, judged; then there is nothing to pin."""
    site.variables["pin_extras_directory"] = str(site.tmp_path)
    template = site.tmp_path / "lanes/extras/glm53_flash_mm.jinja"
    template.parent.mkdir(parents=True)
    template.write_text("SYNTHETIC")
    site.file(NVFP4).parent.mkdir(parents=True)
    mine = "---\n# Mine.\nlane_model_site: {path: /data/flash}  # on the large disk\n\nlane_port: 8001\n"
    site.file(NVFP4).write_text(mine)

    rc, text = site.play(NVFP4)
    assert rc == 0, text
    assert "main of RedHatAI/GLM-5.3-Flash-NVFP4" in text
    assert "Two commits of the drafter were seen in use" in text
    assert (
        '+lane_model_site: {revision: "5ca1ab1e00000000000000000000000000000002", path: /data/flash}  # on the large disk' in text
    )
    assert "Nothing was written." in text
    assert "changed=0" in text
    rc, text = site.play(NVFP4, "-e", "pin_confirm=true", "--check", "--diff")
    assert rc == 0, text
    assert text.count('+  revision: "bf582e4eacc1810f76656d1811693ff6c6737d2a"') == 1, "once, by Ansible"
    assert site.file(NVFP4).read_text() == mine

    rc, text = site.play(NVFP4, "-e", "pin_confirm=true")
    assert rc == 0, text
    following = text.partition("Judge it: ")[2].splitlines()[0]
    assert "playbooks/preflight.yml" in following
    assert "preflight_needs=launch" in following
    assert "pin_confirm" not in following, "a decision of one run"
    made = site.file(NVFP4).read_text()
    assert made.startswith("---\n# Mine.\n# Pinned lane_model.revision on ")
    assert "\n\nlane_port: 8001\n" in made
    data = yaml.safe_load(made)
    assert data["lane_model_site"] == {"revision": "5ca1ab1e00000000000000000000000000000002", "path": "/data/flash"}
    assert data["lane_drafter_site"] == {"revision": "bf582e4eacc1810f76656d1811693ff6c6737d2a"}
    assert next(site.tmp_path.glob("cache/pins/lane_*")).read_text() == mine

    assert site.refusals(NVFP4) == []
    rc, text = site.play(NVFP4)
    assert rc == 0, text
    assert "Nothing to pin: the lane leaves nothing open." in text
    assert "2026-09-20 (" in text
    assert site.file(NVFP4).read_text() == made


def test_what_can_not_be_asked_is_said_and_the_rest_is_written(site: Site) -> None:
    site.hub.repositories["incoai/GLM-5.3-Flash-DFlash2"].gated = "hf_other"
    site.variables["model_weights_token"] = SECRET
    rc, text = site.play(LARGE, "-e", "pin_confirm=true")
    assert rc != 0
    assert "PIN.HUB" in text
    assert "Accept the model's terms" in text
    assert SECRET not in text
    assert "Traceback" not in text
    assert list(yaml.safe_load(site.file(LARGE).read_text())) == ["lane_model_site"]


@pytest.mark.parametrize("lane", [MTP, LARGE, SMALL])
def test_these_lanes_too(site: Site, lane: str) -> None:
    assert site.refusals(lane) != []
    made = site.ask(lane)
    assert (failed(made), made["open"]) == ({}, [])
    assert site.write(made)["written"]
    assert site.refusals(lane) == []
    assert site.ask(lane)["given"] == {}


def test_a_lane_of_ones_own_is_filled_where_it_says_nothing(site: Site) -> None:
    """As new_lane.yml makes it: the parent's file, with its gaps."""
    site.file("mine").parent.mkdir(parents=True)
    text = (ROOT / f"group_vars/lane_{NVFP4}.yml").read_text(encoding="utf-8")
    site.file("mine").write_text(new_lane(text, NVFP4, "mine"))
    made = site.ask("mine")
    assert site.write(made)["written"]
    data = yaml.safe_load(site.file("mine").read_text())
    assert data["lane_drafter"]["revision"] == "bf582e4eacc1810f76656d1811693ff6c6737d2a"
    assert "lane_drafter_site" not in data
    assert "# Research evaluation only" in site.file("mine").read_text()
    assert data["lane_model_site"] == {"revision": "5ca1ab1e00000000000000000000000000000002"}, "the kit has the rest of it"
    assert made["open"] == ["lane_extras.glm53_flash_mm.jinja"]


def test_a_config_that_is_known_to_be_bad_is_not_pinned(site: Site) -> None:
    made = site.ask(LARGE, json.dumps({"lane_model_override": {"config_sha256": "0" * 64}}))
    assert "config.json is" in failed(made)["PIN.FITS"]
    assert [name.partition(" ")[0] for name in made["given"]] == ["lane_drafter.revision"]


def test_an_image_is_pinned_by_what_a_spark_pulls_and_a_tag_that_moved_is_shown(site: Site) -> None:
    lane, tag, registry = "flash_nvfp4_dflash2_tp4_1m_topkfix", "sm121-v12-dflash2-topkfix", site.registry
    arm = registry.image(created="2026-09-15T08:00:00Z", Labels={"dflash2.port": "5"}, Env=["CUDA_VERSION=13.0.2"])
    registry.tags[tag] = registry.index((registry.image("amd64"), "linux/amd64", ""), (arm, "linux/arm64", ""))
    registry.auth, registry.login = "bearer", "me:secret"
    assert "access denied" in failed(site.ask(lane))["PIN.REGISTRY"]
    site.logins = {registry.address: {"username": "me", "password": "secret"}}
    made = site.ask(lane)
    assert any("dflash2.port 5" in note for note in made["notes"])
    site.write(made)
    assert yaml.safe_load(site.file(lane).read_text())["lane_image_site"] == {"digest": arm}
    assert site.ask(lane, all=True)["moved"] == 0
    new = registry.tags[tag] = registry.image(created="2026-10-01T08:00:00Z")
    moved = site.ask(lane, all=True)
    assert moved["moved"] == 1
    assert {f'-  digest: "{arm}"', f'+  digest: "{new}"'} <= set(moved["diff"])
    assert "the pin is of 2026-09-15" in " ".join(" ".join(moved["table"]).split())
    assert not site.write(moved, confirmed=False)["written"]
    # It moves on, before the person confirms what was shown.
    registry.tags[tag] = registry.image(created="2026-10-02T08:00:00Z")
    refused = site.write(site.ask(lane, all=True))
    assert f"was {new} when it was shown" in refused["msg"]
    assert arm in site.file(lane).read_text()


def test_a_site_file_that_can_not_be_changed_gives_the_lines(site: Site) -> None:
    site.file(MTP).parent.mkdir(parents=True)
    site.file(MTP).write_text('mine: {path: /x}\nlane_model_site: "{{ mine }}"\n')
    made = site.ask(MTP)
    assert 'lane_model_site: {revision: "5ca1ab1e00000000000000000000000000000002"}' in failed(made)["PIN.SITE_FILE"]
    assert (made["given"], made["open"]) == ({}, ["lane_model.revision"])


@pytest.mark.parametrize(
    ("lane", "extra", "words"),
    [
        ("flash_nvfp4_mtp_tp3", (), "Did you mean flash_nvfp4_mtp_tp2?"),
        ("", (), "no lane is chosen"),
        (MTP, ("lane_max_modellen=1",), "Did you mean lane_max_model_len?"),
        (MTP, ("lane_family=none",), "there is no group_vars/family_none.yml"),
    ],
)
def test_a_lane_that_is_not_known_is_said_as_preflight_says_it(site: Site, lane: str, extra: tuple[str, ...], words: str) -> None:
    with pytest.raises(AnsibleFilterError) as refused:
        site.ask(lane, *extra)
    assert words in str(refused.value)


def test_two_lanes_in_one_run_are_one_too_many(site: Site) -> None:
    site.hosts["s2"] |= {"lane": LARGE}
    with pytest.raises(AnsibleFilterError, match=r"have the lanes .*Name one: -e lane=ID"):
        site.ask(MTP)


def test_nobody_there(site: Site) -> None:
    site.hub.address = "127.0.0.1:9"
    assert "http://127.0.0.1:9 does not answer" in failed(site.ask(MTP))["PIN.HUB"]
    site.hub.address = "192.0.2.9"
    assert "without TLS" in failed(site.ask(MTP, token=SECRET))["PIN.HUB"]
