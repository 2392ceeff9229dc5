#!/usr/bin/env bash
# OfficeCaltech10, as configs/datasets/office_caltech10.yaml has it.
# bash scripts/office_caltech10.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" office_caltech10 "$@"
