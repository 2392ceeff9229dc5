#!/usr/bin/env bash
# Caltech101, as configs/datasets/caltech101.yaml has it.
# bash scripts/caltech101.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset caltech101 --trainer "${1:-FedTV}" "${@:2}"
