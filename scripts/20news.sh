#!/usr/bin/env bash
# 20 Newsgroups, as configs/datasets/20news.yaml has it: texts; $BERT names their encoder.
# bash scripts/20news.sh [TRAINER] [flags ...]    texts below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 --dataset 20news \
    --backbone "transformers-text:${BERT:-bert-base-uncased}" --peft head+lora \
    --trainer "${1:-Thorki}" "${@:2}"
