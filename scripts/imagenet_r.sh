#!/usr/bin/env bash
# ImageNetR has test images only: trained on ImageNet, tested on both.
# bash scripts/imagenet_r.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" imagenet "${1:-FedTV}" --targets imagenet_r "${@:2}"
