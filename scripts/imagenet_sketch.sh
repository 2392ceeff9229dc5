#!/usr/bin/env bash
# ImageNetSketch has test images only: trained on ImageNet, tested on both.
# bash scripts/imagenet_sketch.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" imagenet "${1:-FedTV}" --targets imagenet_sketch "${@:2}"
