#!/usr/bin/env bash
# Makes conf/model/textworld, the starting policy of experiment=textworld, from nothing: about 10 minutes on one free core.
#
#   scripts/make_textworld_model.sh [FOLDER]   default: data/textworld-model/model; copy it to conf/model/textworld
#
# It imitates a demonstrator that knows the way and wanders off (a quarter of its commands are detours, one in twenty is not
# possible), on games of their own: what not to try is left for reinforcement learning. Seeds and the thread count are
# fixed, so that the same machine and versions give the same model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
export OMP_NUM_THREADS=1
out="${1:-data/textworld-model/model}" work=data/textworld-model

python -m envs.textworld_games --out "$work" --train 1000 --heldout 60 --seed 1
demonstrate() {
    python -m envs.textworld_demonstrator --tasks "$work/$1.jsonl" --games "$work/games" --out "$work/$2.jsonl" \
        --samples "$3" --detour 0.25 --slip 0.05 --rename --seed 1
}
demonstrate train imperfect 3
demonstrate heldout heldout-imperfect 2

python -m trainer.warmstart --model tiny --demos "$work/imperfect.jsonl" --heldout "$work/heldout-imperfect.jsonl" \
    --out "$out" --steps 700 --lr 3e-3 --muon-lr 0.02 --seed 0 --save-dtype float16

python -m envs.textworld_games --out data/textworld
for temperature in 0 1; do
    echo "playing 100 held-out games at temperature $temperature"
    python -m trainer.tryout --model "$out" --tasks data/textworld/heldout.jsonl --games data/textworld/games --count 100 \
        --max-turns 12 --max-turn-tokens 16 --temperature "$temperature"
done
