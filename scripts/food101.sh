#!/usr/bin/env bash
# Food101, as configs/datasets/food101.yaml has it.
# bash scripts/food101.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" food101 "$@"
