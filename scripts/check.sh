#!/usr/bin/env bash
# Everything that judges the code without running it. Runs all checks, then fails if one of them did.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
source scripts/environment.sh || exit
code=(envs rollout_workers trainer)
failed=()

check() {
    local name="$1" output
    shift
    if output="$("$@" 2>&1)"; then
        echo "ok      $name"
    else
        echo "FAILED  $name"
        echo "${output//$'\n'/$'\n'        }" | sed '1s/^/        /'
        failed+=("$name")
    fi
}

check "ruff check" ruff check --output-format=concise "${code[@]}" tests scripts
check "ruff format" ruff format --check "${code[@]}" tests scripts
check "mypy --strict" mypy "${code[@]}" scripts
check "import contracts" lint-imports
check "sizes and top level" python scripts/limits.py
check "shell syntax" bash -n scripts/*.sh .ci/run

if [[ ${#failed[@]} -gt 0 ]]; then
    echo "check: ${#failed[@]} failed: ${failed[*]}" >&2
    exit 1
fi
