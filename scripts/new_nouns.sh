#!/usr/bin/env bash
# NewNouns, as configs/datasets/new_nouns.yaml has it.
# bash scripts/new_nouns.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" new_nouns "$@"
