#!/usr/bin/env bash
# Base to new: the clients hold the base classes, 16 images each. One run gives personal (Local),
# base_all, base_other, new, hm2, hm3 and cm; there is no second run for the new classes.
# bash scripts/base2new/run.sh DATASET TRAINER [flags ...]    seeds 1 2 3
set -e
main="$(dirname "$0")/../../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset "${1:?DATASET}" --trainer "${2:?TRAINER}" \
    --subsample-classes base --shots 16 "${@:3}"
