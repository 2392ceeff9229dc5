#!/usr/bin/env bash
# CoOp's cross-dataset study: from ImageNet to the other ten sets, in one run per seed.
# bash scripts/cross_dataset/imagenet.sh TRAINER [flags ...]    seeds 1 2 3
set -e
targets=caltech101,oxford_pets,stanford_cars,oxford_flowers,food101,fgvc_aircraft,sun397,dtd
bash "$(dirname "$0")/run.sh" imagenet "${1:?TRAINER}" "$targets,eurosat,ucf101" "${@:2}"
