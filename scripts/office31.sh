#!/usr/bin/env bash
# Office31, as configs/datasets/office31.yaml has it.
# bash scripts/office31.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset office31 --trainer "${1:-FedTV}" "${@:2}"
