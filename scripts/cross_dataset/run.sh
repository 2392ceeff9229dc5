#!/usr/bin/env bash
# Cross-dataset transfer: 16 shots of SOURCE, then the global model on TARGETS (a,b,c).
# bash scripts/cross_dataset/run.sh SOURCE TRAINER TARGETS [flags ...]    seeds 1 2 3
set -e
main="$(dirname "$0")/../../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset "${1:?SOURCE}" --trainer "${2:?TRAINER}" \
    --shots 16 --targets "${3:?TARGETS}" "${@:4}"
