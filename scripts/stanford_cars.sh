#!/usr/bin/env bash
# StanfordCars, as configs/datasets/stanford_cars.yaml has it.
# bash scripts/stanford_cars.sh [TRAINER] [flags ...]    images below $DATA, seeds 1 2 3
exec bash "$(dirname "$0")/dataset.sh" stanford_cars "$@"
