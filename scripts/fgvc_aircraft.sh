#!/usr/bin/env bash
# FGVCAircraft, as configs/datasets/fgvc_aircraft.yaml has it.
# bash scripts/fgvc_aircraft.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset fgvc_aircraft --trainer "${1:-FedTV}" "${@:2}"
