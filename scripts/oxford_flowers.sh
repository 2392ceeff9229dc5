#!/usr/bin/env bash
# OxfordFlowers, as configs/datasets/oxford_flowers.yaml has it.
# bash scripts/oxford_flowers.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset oxford_flowers --trainer "${1:-FedTV}" "${@:2}"
