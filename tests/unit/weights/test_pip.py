# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A password among the arguments of pip is in no word of a command: it goes by the environment, where pip reads the same from."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ansible.module_utils.sparklanes.common.secrets import secret_value
from ansible.module_utils.sparklanes.weights import pip
from sparklanes import pip_arguments  # filter_plugins/sparklanes.py

URL, OTHER, PLAIN = "https://me:SECRET@a.example/simple", "https://me:SEC@RET@b.example/simple", "https://c.example/simple"


@pytest.mark.parametrize(
    ("arguments", "plain", "environment"),
    [
        ([], [], {}),
        ([f"--index-url={PLAIN}", "--pre"], [f"--index-url={PLAIN}", "--pre"], {}),
        ([f"--index-url={URL}"], [], {"PIP_INDEX_URL": URL}),
        (["--index-url", URL, "--no-cache-dir"], ["--no-cache-dir"], {"PIP_INDEX_URL": URL}),
        (["-i", URL], [], {"PIP_INDEX_URL": URL}),
        ([f"-i{URL}"], [], {"PIP_INDEX_URL": URL}),
        (["-f", URL, "--timeout", "60"], ["--timeout", "60"], {"PIP_FIND_LINKS": URL}),
        (
            ["--extra-index-url", PLAIN, f"--extra-index-url={OTHER}", "--trusted-host", "a.example"],
            ["--trusted-host", "a.example"],
            {"PIP_EXTRA_INDEX_URL": f"{PLAIN} {OTHER}"},
        ),
        (["--proxy", URL, "idna"], ["idna"], {"PIP_PROXY": URL}),
    ],
)
def test_arguments_and_environment(arguments: list[str], plain: list[str], environment: dict[str, str]) -> None:
    assert pip.split(arguments) == (plain, environment)
    assert pip_arguments(arguments) == {"arguments": plain, "environment": environment}
    assert not any(secret_value(word) for word in plain)
    assert all(pip.VARIABLE.fullmatch(name) for name in environment)


def test_a_password_in_no_option_is_refused() -> None:
    with pytest.raises(ValueError, match="in no option for an address") as told:
        pip.split(["--pre", f"pkg @ {URL}"])
    assert "SECRET" not in str(told.value)
    with pytest.raises(Exception, match="model_weights_pip_args"):
        pip_arguments([URL])


def test_pip_itself_reads_what_we_give_it() -> None:
    """Its own names for its options, asked of the pip of this Python."""
    _, environment = pip.split(["-i", URL, "--extra-index-url", OTHER, "--find-links", URL])
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        env={"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull} | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in ("index-url", "extra-index-url", "find-links"):
        assert f":env:.{name}=" in told
