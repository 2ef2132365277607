"""What benchmarks/tree counts, on a tree of a few lines."""

from __future__ import annotations

from pathlib import Path

from benchmarks.tree import bench

HOME = "module_utils/sparklanes"


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_module_carries_what_it_reaches_and_nothing_else(tmp_path: Path) -> None:
    package = "ansible.module_utils.sparklanes"
    root = lay(
        tmp_path,
        {
            "library/look.py": f"from {package}.room import near\nfrom {package}.room.other import name\n",
            f"{HOME}/room/__init__.py": '"""A room."""\n',
            f"{HOME}/room/near.py": f"from {package}.far import thing\n\nX = 1\n\n\ndef one():\n    return thing\n",
            f"{HOME}/room/other.py": f"from {package}.room import near\nname = 1\n",
            f"{HOME}/far.py": "import os\n\n\nclass Thing:\n    a = 1\n\n\nthing = Thing()\n",
            f"{HOME}/room/unused.py": "Y = 1\n",
        },
    )
    files = bench.shipped(root, root / "library/look.py")
    assert [file.name for file in files] == ["far.py", "near.py", "other.py"]
    assert [bench.definition_lines(file) for file in files] == [3, 3, 1]
    found = bench.measure(root)
    assert found["look_files"] == (3, "files")
    assert found["look_lines"] == (7, "lines")


def test_joins_and_entry_points_are_found(tmp_path: Path) -> None:
    root = lay(
        tmp_path,
        {
            "library/look.py": "",
            "roles/a/meta/argument_specs.yml": "argument_specs: {main: {}, start: {}}\n",
            "roles/a/tasks/main.yml": "- x: \"{{ dict(h | zip(h | map('extract', hostvars))) }}\"\n",
            "playbooks/p.yml": (
                "- ansible.builtin.include_role:\n    name: a\n    tasks_from: start\n"
                "- ansible.builtin.include_role:\n    name: a\n    tasks_from: stop\n"
            ),
        },
    )
    assert bench.joins(root) == 2
    assert bench.unspecified(root) == 1


def test_a_line_more_than_before_is_not_ok() -> None:
    made = list(
        bench.figures({"m_lines": (3, "lines"), "host_joins_in_yaml": (1, "expressions")}, {"m_lines": (2, "lines")}, "abc")
    )
    assert [figure.ok for figure in made] == [False, False]
    assert next(iter(bench.figures({"m_lines": (3, "lines")}, None, ""))).ok
