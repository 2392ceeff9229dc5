#!/usr/bin/env bash
# Cifar10, as configs/datasets/cifar10.yaml has it.
# bash scripts/cifar10.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" cifar10 "$@"
