#!/usr/bin/env bash
# Submits a training run to any Ray cluster; the cluster gets a copy of the code, and its machines need the dependencies
# (the images of docker/, or an environment made by scripts/setup.sh with `ray start` run from it).
#
#   scripts/submit.sh --address http://HEAD:8265 --no-wait -- experiment=quickstart tree.roots=4 runs_dir=/shared/runs \
#       env.train_tasks=/shared/data/train.jsonl env.eval_tasks=/shared/data/heldout.jsonl \
#       env.retriever.corpus=/shared/data/corpus.jsonl
#
# What comes before `--` goes to `ray job submit` (see `ray job submit --help`), what comes after it to trainer.main.
# Paths in the configuration are the cluster's: data, models and runs_dir on a folder that every machine mounts.
# A cluster with token authentication wants RAY_AUTH_MODE=token and its token in RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token.
# Secrets (WANDB_API_KEY, HF_TOKEN) belong into the cluster's own environment: a job's settings are shown in the dashboard.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

options=()
while [[ $# -gt 0 && "$1" != -- ]]; do
    options+=("$1")
    shift
done
if [[ "${1:-}" != -- || $# -lt 2 ]]; then
    echo "submit: write scripts/submit.sh [--address URL] -- experiment=NAME key=value ..." >&2
    exit 2
fi
shift
source scripts/environment.sh

# PYTHONPATH=. makes our packages win over packages of the same name in the image; the excludes keep the upload small.
export RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES="" # Ray would warn once per folder that it leaves out; they are listed here
exec ray job submit "${options[@]}" --working-dir . --runtime-env-json '{
    "env_vars": {"PYTHONPATH": ".", "PYTHONUNBUFFERED": "1"},
    "excludes": ["/.venv*", "/.git", "/.*_cache", "/.hypothesis", "/data", "/runs", "/outputs", "/wandb", "/docs", "/tests",
                 "__pycache__", "*.egg-info"]
}' -- python -m trainer.main "$@"
