#!/usr/bin/env bash
# Cross-dataset transfer: 16 shots of SOURCE, then the global model on TARGETS (a,b,c).
# bash scripts/cross_dataset/run.sh SOURCE TRAINER TARGETS [flags ...]    seeds 1 2 3
exec bash "$(dirname "$0")/../dataset.sh" "${1:?SOURCE}" "${2:?TRAINER}" \
    --shots 16 --targets "${3:?TARGETS}" "${@:4}"
