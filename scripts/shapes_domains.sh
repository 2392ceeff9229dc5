#!/usr/bin/env bash
# ShapesDomains, as configs/datasets/shapes_domains.yaml has it.
# bash scripts/shapes_domains.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" shapes_domains "$@"
