#!/usr/bin/env bash
# Few-shot, personalised accuracy: SHOTS images per class.
# bash scripts/few_shot/run.sh DATASET TRAINER SHOTS [flags ...]    seeds 1 2 3
set -e
main="$(dirname "$0")/../../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset "${1:?DATASET}" --trainer "${2:?TRAINER}" --shots "${3:?SHOTS}" "${@:4}"
