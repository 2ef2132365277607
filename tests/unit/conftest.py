"""Make modules and module_utils importable as Ansible does, and run a module in this process."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ansible.module_utils
import pytest
from ansible.module_utils.testing import patch_module_args
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))
sys.path[:0] = [str(ROOT / folder) for folder in ("library", "filter_plugins", "action_plugins", "script")]
# The rooms of the tests, so that one may use what another has laid out, in whatever order they are read.
sys.path += sorted(str(folder) for folder in Path(__file__).parent.iterdir() if folder.is_dir())

# ansible-playbook and its like lie beside this Python, whether or not its environment is activated.
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

# No test fails by the clock: machines and what else runs on them differ.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Runs of ansible-playbook leave their logs here, not in the tree.
os.environ["SPARKLANES_LOG_DIRECTORY"] = tempfile.mkdtemp(prefix="sparklanes-logs-")

RunModule = Callable[..., dict[str, Any]]


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


@pytest.fixture
def run_module(capsys: pytest.CaptureFixture[str]) -> RunModule:
    """Call `run_module(module, args, check=False)`: its main() under these arguments, its JSON result back.

    A failed module's result holds `failed: true`, as Ansible would report it.
    """

    def run(module: Any, args: dict[str, Any], check: bool = False, diff: bool = False) -> dict[str, Any]:
        capsys.readouterr()
        with patch_module_args({**args, "_ansible_check_mode": check, "_ansible_diff": diff}), pytest.raises(SystemExit):
            module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return run
