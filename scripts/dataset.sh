#!/usr/bin/env bash
# A data set, as configs/datasets/DATASET.yaml has it.
# bash scripts/dataset.sh DATASET [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset "${1:?DATASET}" --trainer "${2:-FedTV}" "${@:3}"
