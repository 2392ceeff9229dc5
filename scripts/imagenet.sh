#!/usr/bin/env bash
# ImageNet, as configs/datasets/imagenet.yaml has it.
# bash scripts/imagenet.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" imagenet "$@"
