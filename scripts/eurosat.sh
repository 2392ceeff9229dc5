#!/usr/bin/env bash
# EuroSAT, as configs/datasets/eurosat.yaml has it.
# bash scripts/eurosat.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset eurosat --trainer "${1:-FedTV}" "${@:2}"
