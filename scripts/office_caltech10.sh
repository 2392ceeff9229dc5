#!/usr/bin/env bash
# OfficeCaltech10, as configs/datasets/office_caltech10.yaml has it.
# bash scripts/office_caltech10.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset office_caltech10 --trainer "${1:-FedTV}" "${@:2}"
