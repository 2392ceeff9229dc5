#!/usr/bin/env bash
# Few-shot, personalised accuracy: SHOTS images per class.
# bash scripts/few_shot/run.sh DATASET TRAINER SHOTS [flags ...]    seeds 1 2 3
exec bash "$(dirname "$0")/../dataset.sh" "${1:?DATASET}" "${2:?TRAINER}" \
    --shots "${3:?SHOTS}" "${@:4}"
