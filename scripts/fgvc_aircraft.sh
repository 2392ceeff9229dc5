#!/usr/bin/env bash
# FGVCAircraft, as configs/datasets/fgvc_aircraft.yaml has it.
# bash scripts/fgvc_aircraft.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" fgvc_aircraft "$@"
