#!/usr/bin/env bash
# StanfordCars, as configs/datasets/stanford_cars.yaml has it.
# bash scripts/stanford_cars.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset stanford_cars --trainer "${1:-FedTV}" "${@:2}"
