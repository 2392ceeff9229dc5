#!/usr/bin/env bash
# Base to new: the clients hold the base classes, 16 images each (EuroSAT has five: five clients).
# One run gives personal (Local), base_all, base_other, new, hm2, hm3 and cm; no second run is due.
# bash scripts/base2new/run.sh DATASET TRAINER [flags ...]    seeds 1 2 3
set -e
few="--num-users 5"; case "$*" in *partition*|*PARTITION*) few= ;; [Ee]uro[Ss]*) ;; *) few= ;; esac
main="$(dirname "$0")/../../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 --subsample-classes base \
    --dataset "${1:?DATASET}" --trainer "${2:?TRAINER}" --shots 16 $few "${@:3}"
