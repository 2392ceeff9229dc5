#!/usr/bin/env bash
# ImageNetA has test images only: trained on ImageNet, tested on both.
# bash scripts/imagenet_a.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset imagenet --targets imagenet_a --trainer "${1:-FedTV}" "${@:2}"
