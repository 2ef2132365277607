# shellcheck shell=bash
# Sourced by script/demo and script/test: the project's virtual environment.

# Each supported Python with the ansible that brings the ansible-core it is tested with: 2.19, 2.20, 2.21.
PAIRS='3.11 2.19 ansible>=12.3,<13
3.12 2.20 ansible>=13,<14
3.13 2.21 ansible>=14,<15'

# A Python $1 (such as 3.12) that runs and can make virtual environments: from the PATH, then from the folders of pyenv and uv, whose
# shims are on the PATH also where the version they name is not chosen.
find_python() {
    local python
    {
        type -aP "python$1" || true
        ls -d "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python \
            "${UV_PYTHON_INSTALL_DIR:-$HOME/.local/share/uv/python}/cpython-$1".*"/bin/python$1" 2> /dev/null || true
    } | while read -r python; do
        if "$python" -c "import sys, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2> /dev/null; then
            echo "$python"
            break
        fi
    done
}

# The first Python that the project supports and that can make a virtual environment.
supported_python() {
    local python
    for python in python3 /usr/bin/python3; do
        if "$python" -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2> /dev/null; then
            echo "$python"
            return
        fi
    done
    for python in 3.13 3.12 3.11; do
        python=$(find_python "$python")
        if [ -n "$python" ]; then
            echo "$python"
            return
        fi
    done
    echo 'error: sparklanes needs Python 3.11, 3.12 or 3.13 with venv, and there is none here.' >&2
    echo "  Found: $(python3 --version 2>&1 || true). On Debian 12, 13 and Ubuntu 24.04: apt-get install python3 python3-venv" >&2
    return 1
}

# Python and ansible-core of an environment, such as "3.11 2.19".
pair_of() {
    "$1/bin/python" -c 'import sys, ansible.release as r; print("%d.%d" % sys.version_info[:2], ".".join(r.__version__.split(".")[:2]))'
}

# .venv, or the folder $1, with the project and what its tests need; at once when it is there for this very pyproject.toml.
# $2: the Python to make it with, the first supported one when left out. $3: a closer requirement, such as ansible<14.
make_venv() {
    local folder=${1:-.venv} log
    log=.sandbox/log/$(basename "$folder").log
    mkdir -p .sandbox/log
    if ! fill_venv "$folder" "${2:-}" "${3:-}" > "$log" 2>&1; then
        echo "error: the virtual environment could not be made; the end of $log:" >&2
        tail -n 15 "$log" >&2
        return 1
    fi
}

fill_venv() {
    local folder=$1 python=$2 closer=$3 wanted mark=$1/made-for
    wanted=$(sha256sum pyproject.toml | cut -c1-16)$closer
    if [ -x "$folder/bin/ansible-playbook" ] && [ "$(cat "$mark" 2> /dev/null)" = "$wanted" ]; then
        return
    fi
    if [ ! -x "$folder/bin/python" ]; then
        python=${python:-$(supported_python)} || return 1
        "$python" -m venv "$folder" || return 1
    fi
    "$folder/bin/python" -m pip install --disable-pip-version-check --progress-bar off --editable '.[test]' ${closer:+"$closer"} || return 1
    echo "$wanted" > "$mark.part"
    mv "$mark.part" "$mark"
}
