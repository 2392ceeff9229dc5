#!/usr/bin/env bash
# ImageNetV2 has test images only: trained on ImageNet, tested on both.
# bash scripts/imagenetv2.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" imagenet "${1:-FedTV}" --targets imagenetv2 "${@:2}"
