#!/usr/bin/env bash
# Food101, as configs/datasets/food101.yaml has it.
# bash scripts/food101.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset food101 --trainer "${1:-FedTV}" "${@:2}"
