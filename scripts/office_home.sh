#!/usr/bin/env bash
# OfficeHome, as configs/datasets/office_home.yaml has it.
# bash scripts/office_home.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset office_home --trainer "${1:-FedTV}" "${@:2}"
