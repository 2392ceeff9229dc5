#!/usr/bin/env bash
# ShapesDomains, as configs/datasets/shapes_domains.yaml has it.
# bash scripts/shapes_domains.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset shapes_domains --trainer "${1:-FedTV}" "${@:2}"
