#!/usr/bin/env bash
# Leave one domain out, each in turn; every other domain is one client. Seeds 1 2 3; arguments:
# DATASET TRAINER "DOMAIN ..." [flags ...]
set -e
read -ra domains <<< "${3:?DOMAINS}"
for domain in "${domains[@]}"; do
    "${PYTHON:-python}" "$(dirname "$0")/../../federated_main.py" --root "${DATA:-DATA/}" \
        --seeds 1 2 3 --partition domain --dataset "${1:?DATASET}" --trainer "${2:?TRAINER}" \
        --held-out-domain "$domain" --num-users $((${#domains[@]} - 1)) "${@:4}"
done
