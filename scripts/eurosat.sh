#!/usr/bin/env bash
# EuroSAT, as configs/datasets/eurosat.yaml has it.
# bash scripts/eurosat.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" eurosat "$@"
