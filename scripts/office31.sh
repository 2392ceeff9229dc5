#!/usr/bin/env bash
# Office31, as configs/datasets/office31.yaml has it.
# bash scripts/office31.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" office31 "$@"
