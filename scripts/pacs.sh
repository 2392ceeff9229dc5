#!/usr/bin/env bash
# PACS, as configs/datasets/pacs.yaml has it.
# bash scripts/pacs.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset pacs --trainer "${1:-FedTV}" "${@:2}"
