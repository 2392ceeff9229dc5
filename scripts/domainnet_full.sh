#!/usr/bin/env bash
# DomainNetFull, as configs/datasets/domainnet_full.yaml has it.
# bash scripts/domainnet_full.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset domainnet_full --trainer "${1:-FedTV}" "${@:2}"
