#!/usr/bin/env bash
# Digits, as configs/datasets/digits.yaml has it.
# bash scripts/digits.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset digits --trainer "${1:-FedTV}" "${@:2}"
