#!/usr/bin/env bash
# OxfordFlowers, as configs/datasets/oxford_flowers.yaml has it.
# bash scripts/oxford_flowers.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" oxford_flowers "$@"
