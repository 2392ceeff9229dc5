#!/usr/bin/env bash
# Digits, as configs/datasets/digits.yaml has it.
# bash scripts/digits.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" digits "$@"
