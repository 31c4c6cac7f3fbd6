#!/usr/bin/env bash
# Makes the corridors of scripts.bench.corridor and data/corridor/model, the policy that walks them and errs at the gems.
# 370 optimizer steps of 2,048 tokens: a few minutes on one free core.
#
#   scripts/make_corridor_model.sh             then, for example: docs/results/signal.md
#
# First it imitates an expert, then a demonstrator that takes the wrong gem more often than not: that is left to learn.
# Seeds and the thread count are fixed, so that the same machine and versions give the same model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
export OMP_NUM_THREADS=1
work=data/corridor

for choice in 1 5 10; do
    python -m scripts.bench.corridor_tasks --out "$work/turn-$choice" --choice "$choice"
done
demonstrate() {
    python -m scripts.bench.corridor_tasks --out "$work/$1" --demos "$2" --turns "$3" --right "$4" --seed 1
}
demonstrate expert 8000 10 1
demonstrate short 8000 3 0.3
demonstrate imperfect 2000 10 0.3

python -m trainer.warmstart --model tiny --demos "$work/expert/demos.jsonl" --out "$work/expert/model" \
    --steps 160 --lr 3e-3 --muon-lr 0.02 --seed 0
python -m trainer.warmstart --model "$work/expert/model" --demos "$work/short/demos.jsonl" --out "$work/short/model" \
    --steps 150 --lr 2e-3 --muon-lr 0.01 --seed 0
python -m trainer.warmstart --model "$work/short/model" --demos "$work/imperfect/demos.jsonl" --out "$work/model" \
    --steps 60 --lr 5e-4 --muon-lr 0.003 --seed 0 --save-dtype float16
