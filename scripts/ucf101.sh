#!/usr/bin/env bash
# UCF101, as configs/datasets/ucf101.yaml has it.
# bash scripts/ucf101.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset ucf101 --trainer "${1:-FedTV}" "${@:2}"
