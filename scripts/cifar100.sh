#!/usr/bin/env bash
# Cifar100, as configs/datasets/cifar100.yaml has it.
# bash scripts/cifar100.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" cifar100 "$@"
