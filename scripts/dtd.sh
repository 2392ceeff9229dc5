#!/usr/bin/env bash
# DescribableTextures, as configs/datasets/dtd.yaml has it.
# bash scripts/dtd.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
set -e
main="$(dirname "$0")/../federated_main.py"
"${PYTHON:-python}" "$main" --root "${DATA:-DATA/}" --seeds 1 2 3 \
    --dataset dtd --trainer "${1:-FedTV}" "${@:2}"
