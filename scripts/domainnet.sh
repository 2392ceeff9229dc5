#!/usr/bin/env bash
# DomainNet, as configs/datasets/domainnet.yaml has it.
# bash scripts/domainnet.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset domainnet --trainer "${1:-FedTV}" "${@:2}"
