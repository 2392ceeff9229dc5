#!/usr/bin/env bash
# Shapes, as configs/datasets/shapes.yaml has it.
# bash scripts/shapes.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset shapes --trainer "${1:-FedTV}" "${@:2}"
