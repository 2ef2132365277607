# shellcheck shell=bash
# Sourced by script/demo and script/test: the project's virtual environment.

# The first Python that the project supports and that can make a virtual environment.
supported_python() {
    local python
    for python in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if "$python" -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2> /dev/null; then
            echo "$python"
            return
        fi
    done
    echo 'error: sparklanes needs Python 3.11, 3.12 or 3.13 with venv, and there is none here.' >&2
    echo "  Found: $(python3 --version 2>&1 || true). On Debian 12 and Ubuntu 24.04: apt-get install python3 python3-venv" >&2
    return 1
}

# .venv with the project and what its tests need; at once when it is there for this very pyproject.toml.
make_venv() {
    local log=.sandbox/log/venv.log
    mkdir -p .sandbox/log
    if ! fill_venv > "$log" 2>&1; then
        echo "error: the virtual environment could not be made; the end of $log:" >&2
        tail -n 15 "$log" >&2
        return 1
    fi
}

fill_venv() {
    local wanted mark=.venv/made-for python
    wanted=$(sha256sum pyproject.toml | cut -c1-16)
    if [ -x .venv/bin/ansible-playbook ] && [ "$(cat "$mark" 2> /dev/null)" = "$wanted" ]; then
        return
    fi
    if [ ! -x .venv/bin/python ]; then
        python=$(supported_python) || return 1
        "$python" -m venv .venv || return 1
    fi
    .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off --editable '.[test]' || return 1
    echo "$wanted" > "$mark.part"
    mv "$mark.part" "$mark"
}
