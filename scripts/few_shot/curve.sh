#!/usr/bin/env bash
# The few-shot curve: 1, 2, 4, 8 and 16 images per class.
# bash scripts/few_shot/curve.sh DATASET TRAINER [flags ...]    seeds 1 2 3
set -e
for shots in 1 2 4 8 16; do
    bash "$(dirname "$0")/run.sh" "${1:?DATASET}" "${2:?TRAINER}" "$shots" "${@:3}"
done
