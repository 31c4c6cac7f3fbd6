#!/usr/bin/env bash
# Trains a small agent end to end on this machine and shows what it learned. Arguments are Hydra overrides.
#
#   scripts/quickstart.sh
#   scripts/quickstart.sh tree.roots=4 steps=20 name=wider
#   scripts/quickstart.sh dry_run=true          checks configuration and resources, trains nothing
#
# With RAY_ADDRESS=http://HOST:PORT set it uses that running Ray, which must see this checkout at the same path; otherwise
# it starts a Ray of its own and stops it again. The job runs in the checkout itself, so data/ and runs/ stay in place;
# scripts/submit.sh is for clusters that get a copy. The exit code is the job's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
source scripts/local_ray.sh

# The run's name is fixed here, so that the end of this script knows its folder.
name="quickstart-$(date +%Y%m%d-%H%M%S)" runs_dir=runs dry_run=false
for override in "$@"; do
    case "$override" in
        name=?*) name="${override#name=}" ;;
        runs_dir=?*) runs_dir="${override#runs_dir=}" ;;
        dry_run=[Tt]rue) dry_run=true ;;
    esac
done

job="espalier-$$-$(date +%s)"
follower=""
finish() {
    local code=$?
    trap - EXIT INT TERM
    set +e
    if [[ -n "$follower" ]]; then # interrupted: the run ends its actors and closes its files before Ray goes
        echo "quickstart: stopping the run" >&2
        kill "$follower" 2>/dev/null
        timeout 60 ray job stop "$job" >/dev/null 2>&1
    fi
    case "$code" in
        0 | 2 | 130 | 143) stop_local_ray ;; # a refused setting (2) and an interruption speak for themselves
        *) stop_local_ray keep ;;
    esac
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

python -m envs.prepare --out data/quickstart
python scripts/check_settings.py experiment=quickstart "name=$name" "$@"

if [[ -z "${RAY_ADDRESS:-}" ]]; then
    start_local_ray
fi

ray job submit --no-wait --submission-id "$job" --log-style=record --log-color=false \
    --runtime-env-json "{\"env_vars\": {\"PYTHONPATH\": \"$PWD\", \"PYTHONUNBUFFERED\": \"1\"}}" \
    -- env --chdir="$PWD" "$venv/bin/python" -m trainer.main experiment=quickstart "name=$name" "$@" >/dev/null
# In the background, because bash runs a trap only between commands, and `wait` is one that a signal ends.
python scripts/follow_job.py "$job" &
follower=$!
code=0
wait "$follower" || code=$?
follower=""
[[ "$code" == 0 ]] || exit "$code"
if [[ "$dry_run" == false ]]; then
    python scripts/after_run.py "$runs_dir/$name"
fi
