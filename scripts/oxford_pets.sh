#!/usr/bin/env bash
# OxfordPets, as configs/datasets/oxford_pets.yaml has it.
# bash scripts/oxford_pets.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset oxford_pets --trainer "${1:-FedTV}" "${@:2}"
