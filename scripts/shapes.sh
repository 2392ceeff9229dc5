#!/usr/bin/env bash
# Shapes, as configs/datasets/shapes.yaml has it.
# bash scripts/shapes.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" shapes "$@"
