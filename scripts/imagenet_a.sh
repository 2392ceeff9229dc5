#!/usr/bin/env bash
# ImageNetA has test images only: trained on ImageNet, tested on both.
# bash scripts/imagenet_a.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" imagenet "${1:-FedTV}" --targets imagenet_a "${@:2}"
