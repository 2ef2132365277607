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

# Other supported Pythons on this machine than the one of .venv: one path a line.
other_pythons() {
    local python version mine
    mine=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    for version in 3.11 3.12 3.13; do
        python=$(command -v "python$version") || continue
        if [ "$version" != "$mine" ] && "$python" -c 'import ensurepip' 2> /dev/null; then
            echo "$python"
        fi
    done
}

# .venv, or the folder $1, with the project and what its tests need; at once when it is there for this very pyproject.toml.
# $2: the Python to make it with, the first supported one when left out.
make_venv() {
    local folder=${1:-.venv} log
    log=.sandbox/log/$(basename "$folder").log
    mkdir -p .sandbox/log
    if ! fill_venv "$folder" "${2:-}" > "$log" 2>&1; then
        echo "error: the virtual environment could not be made; the end of $log:" >&2
        tail -n 15 "$log" >&2
        return 1
    fi
}

fill_venv() {
    local folder=$1 python=$2 wanted mark=$1/made-for
    wanted=$(sha256sum pyproject.toml | cut -c1-16)
    if [ -x "$folder/bin/ansible-playbook" ] && [ "$(cat "$mark" 2> /dev/null)" = "$wanted" ]; then
        return
    fi
    if [ ! -x "$folder/bin/python" ]; then
        python=${python:-$(supported_python)} || return 1
        "$python" -m venv "$folder" || return 1
    fi
    "$folder/bin/python" -m pip install --disable-pip-version-check --progress-bar off --editable '.[test]' || return 1
    echo "$wanted" > "$mark.part"
    mv "$mark.part" "$mark"
}
