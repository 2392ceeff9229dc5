#!/usr/bin/env bash
# SUN397, as configs/datasets/sun397.yaml has it.
# bash scripts/sun397.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset sun397 --trainer "${1:-FedTV}" "${@:2}"
