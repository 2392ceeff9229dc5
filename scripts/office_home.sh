#!/usr/bin/env bash
# OfficeHome, as configs/datasets/office_home.yaml has it.
# bash scripts/office_home.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" office_home "$@"
