#!/usr/bin/env bash
# DomainNetFull, as configs/datasets/domainnet_full.yaml has it.
# bash scripts/domainnet_full.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" domainnet_full "$@"
