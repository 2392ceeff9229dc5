#!/usr/bin/env bash
# DomainNet, as configs/datasets/domainnet.yaml has it.
# bash scripts/domainnet.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" domainnet "$@"
