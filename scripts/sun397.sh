#!/usr/bin/env bash
# SUN397, as configs/datasets/sun397.yaml has it.
# bash scripts/sun397.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" sun397 "$@"
