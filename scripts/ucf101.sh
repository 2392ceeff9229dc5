#!/usr/bin/env bash
# UCF101, as configs/datasets/ucf101.yaml has it.
# bash scripts/ucf101.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" ucf101 "$@"
