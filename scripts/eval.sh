#!/usr/bin/env bash
# Evaluates the policy that a run exported: success with greedy decoding, and pass@k. It uses a private Ray of its own.
#
#   scripts/eval.sh runs/NAME
#   scripts/eval.sh runs/NAME evaluation.tasks=50 --samples 4      settings first, then options
set -euo pipefail
if [[ $# -lt 1 ]]; then
    echo "eval: give the run folder, e.g. scripts/eval.sh runs/NAME" >&2
    exit 2
fi
run="$(realpath "$1")"
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
exec python -m trainer.evaluate "$run" cluster.address=local "$@"
