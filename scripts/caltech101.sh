#!/usr/bin/env bash
# Caltech101, as configs/datasets/caltech101.yaml has it.
# bash scripts/caltech101.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" caltech101 "$@"
