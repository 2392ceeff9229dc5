#!/usr/bin/env bash
# ImageNet, as configs/datasets/imagenet.yaml has it.
# bash scripts/imagenet.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset imagenet --trainer "${1:-FedTV}" "${@:2}"
