#!/usr/bin/env bash
# OxfordPets, as configs/datasets/oxford_pets.yaml has it.
# bash scripts/oxford_pets.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" oxford_pets "$@"
