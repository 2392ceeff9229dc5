#!/usr/bin/env bash
# DescribableTextures, as configs/datasets/dtd.yaml has it.
# bash scripts/dtd.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" dtd "$@"
