#!/usr/bin/env bash
# NewNouns, as configs/datasets/new_nouns.yaml has it.
# bash scripts/new_nouns.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset new_nouns --trainer "${1:-FedTV}" "${@:2}"
