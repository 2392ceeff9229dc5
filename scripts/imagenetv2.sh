#!/usr/bin/env bash
# ImageNetV2 has test images only: trained on ImageNet, tested on both.
# bash scripts/imagenetv2.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset imagenet --targets imagenetv2 --trainer "${1:-FedTV}" "${@:2}"
