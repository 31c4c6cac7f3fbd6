#!/usr/bin/env bash
# Makes the starting policy of experiment=smollm2: SmolLM2-135M-Instruct, taught the format of the task by a short
# supervised start on the imperfect demonstrator. About 10 minutes on two idle cores; done once, then skipped.
#
#   scripts/make_smollm2.sh
#   python -m trainer.main experiment=smollm2 cluster=local
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
data=data/quickstart base=data/models/smollm2 out=data/models/smollm2-warm

if [[ -f "$out/model.safetensors" ]]; then
    echo "$out is already there; nothing to do."
    exit 0
fi
python -m envs.prepare --out "$data"
python -m trainer.smollm2 --out "$base"
python -m envs.demonstrator --tasks "$data/train.jsonl" --corpus "$data/corpus.jsonl" --out "$data/demos.jsonl" \
    --early 0.6 --wrong 0.1 --seed 0
python -m trainer.warmstart --model "$base" --demos "$data/demos.jsonl" --out "$out" \
    --steps 110 --lr 5e-5 --batch-tokens 512 --save-dtype bfloat16
