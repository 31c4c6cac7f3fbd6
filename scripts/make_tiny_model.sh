#!/usr/bin/env bash
# Makes conf/model/tiny, the starting policy of the quickstart, from nothing: about 20 minutes on one free CPU core.
#
#   scripts/make_tiny_model.sh [FOLDER]        default: data/tiny-model/model; copy it to conf/model/tiny to ship it
#
# First it imitates an expert on training cities (how to search, read and copy), then the imperfect demonstrator, who often
# answers too early and sometimes searches in vain: these decisions are left for reinforcement learning to improve.
# Seeds and the thread count are fixed, so that the same machine and versions give the same model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
export OMP_NUM_THREADS=1
out="${1:-data/tiny-model/model}" work=data/tiny-model
corpus="$work/corpus.jsonl"

python -m envs.prepare --out "$work" --train 40000 --heldout 600 --seed 0
demonstrate() {
    python -m envs.demonstrator --tasks "$work/$1.jsonl" --corpus "$corpus" --out "$work/$2.jsonl" \
        --early "$3" --wrong "$4" --seed 1
}
demonstrate train expert 0 0
demonstrate train imperfect 0.6 0.1
demonstrate heldout heldout-expert 0 0

python -m trainer.warmstart --model tiny --demos "$work/expert.jsonl" --heldout "$work/heldout-expert.jsonl" \
    --out "$work/expert" --steps 1400 --lr 3e-3 --muon-lr 0.02 --practice 0.6 --seed 0
python -m trainer.warmstart --model "$work/expert" --demos "$work/imperfect.jsonl" \
    --heldout "$work/heldout-expert.jsonl" --out "$out" --steps 1400 --lr 2e-3 --muon-lr 0.01 --practice 0.4 --seed 0 \
    --save-dtype float16
for temperature in 0 1; do
    echo "playing 150 held-out questions at temperature $temperature"
    python -m trainer.tryout --model "$out" --tasks data/tiny-model/heldout.jsonl --corpus "$corpus" --count 150 \
        --temperature "$temperature"
done
