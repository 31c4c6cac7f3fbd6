#!/usr/bin/env bash
# Makes conf/model/shop, the starting policy of experiment=shop, from nothing: about 10 minutes on one free core.
#
#   scripts/make_shop_model.sh [FOLDER]   default: data/shop-model/model; copy it to conf/model/shop
#
# It imitates an imperfect clerk who answers the tickets of a shop of their own, as typed nodes and as the flat policy, the
# same tickets in both forms: what the clerk does badly is left for reinforcement learning. Seeds and the thread count are
# fixed, so that the same machine and versions give the same model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
export OMP_NUM_THREADS=1
out="${1:-data/shop-model/model}" work=data/shop-model

python -m envs.shop.prepare --out "$work" --customers 6000 --orders 9000 --train 4200 --heldout 300 --seed 1
for split in train heldout; do
    python -m envs.shop.demonstrator --tasks "$work/$split.jsonl" --database "$work/shop.sqlite" \
        --out "$work/$split-imperfect.jsonl" --seed 1
done
python -m trainer.warmstart --model tiny --demos "$work/train-imperfect.jsonl" --heldout "$work/heldout-imperfect.jsonl" \
    --out "$out" --steps 1100 --lr 3e-3 --muon-lr 0.02 --seed 0 --save-dtype float16

python -m envs.shop.prepare --out data/shop
for temperature in 0 1; do
    python -m scripts.shop_tryout --model "$out" --data data/shop --temperature "$temperature"
done
