#!/usr/bin/env bash
# PACS, as configs/datasets/pacs.yaml has it.
# bash scripts/pacs.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" pacs "$@"
