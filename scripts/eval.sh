#!/usr/bin/env bash
# Evaluates the policy that a run exported: success with greedy decoding, and pass@k.
#
#   scripts/eval.sh runs/NAME [arguments of python -m trainer.evaluate]
set -euo pipefail
if [[ $# -lt 1 ]]; then
    echo "eval: give the run folder, e.g. scripts/eval.sh runs/NAME" >&2
    exit 2
fi
run="$(realpath "$1")"
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
exec python -m trainer.evaluate "$run" "$@"
