#!/usr/bin/env bash
# Everything CI runs: static checks, then the tests.
#
#   scripts/test.sh                 all tests, those with real Ray, vLLM and DeepSpeed included
#   scripts/test.sh --fast          without the slow ones, about two minutes
#   scripts/test.sh --fast -k tree  more arguments go to pytest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

parts=("not slow" "slow")
if [[ "${1:-}" == --fast ]]; then
    parts=("not slow")
    shift
elif [[ -n "${CI:-}" && "$(id -u)" == 0 ]] && ! command -v chromium >/dev/null && command -v apt-get >/dev/null; then
    echo "test: installing chromium for the report's browser test"
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium; } \
        >/dev/null 2>&1 || echo "test: chromium could not be installed; the browser test will be skipped"
fi

code=0
scripts/check.sh || code=$? # the tests run all the same: one run shows everything that is wrong

# No test may reach a hub, a W&B server or somebody's running cluster.
unset RAY_ADDRESS RAY_API_SERVER_ADDRESS WANDB_API_KEY
export HF_HUB_OFFLINE=1 WANDB_MODE=offline WANDB_SILENT=true
none=0 # parts for which the arguments select no test
for part in "${parts[@]}"; do
    workers=()
    # Slow tests start processes of their own and want the machine for themselves.
    if [[ "$part" == "not slow" ]]; then workers=(-n auto --maxprocesses 8 --dist loadfile); fi
    python -m pytest -q --tb=short --durations=10 -m "$part" "${workers[@]}" "$@" && continue || result=$?
    if ((result == 5)); then none=$((none + 1)); else code=$result; fi
done
if ((none == ${#parts[@]})); then echo "test: no test matches: $*" >&2 && code=5; fi
exit "$code"
