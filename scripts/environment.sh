# Sourced by the other scripts: sets the environment up when needed and puts it on PATH. The caller stands in the checkout.
scripts/setup.sh
venv="${ESPALIER_VENV:-$PWD/.venv}"
export PATH="$venv/bin:$PATH"
export VIRTUAL_ENV="$venv"
export PYTHONPATH="$PWD"                # packages named `trainer` and `envs` exist elsewhere; ours come first
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # more threads beside other work cost vLLM and torch up to 5× on CPU
export RAY_USAGE_STATS_ENABLED=0
export TOKENIZERS_PARALLELISM=false
