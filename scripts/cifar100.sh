#!/usr/bin/env bash
# Cifar100, as configs/datasets/cifar100.yaml has it.
# bash scripts/cifar100.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset cifar100 --trainer "${1:-FedTV}" "${@:2}"
