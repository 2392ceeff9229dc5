#!/usr/bin/env bash
# CoOp's domain generalisation: from ImageNet to its four variants, in one run per seed.
# bash scripts/domain_generalisation/imagenet.sh TRAINER [flags ...]    seeds 1 2 3
exec bash "$(dirname "$0")/../cross_dataset/run.sh" imagenet "${1:?TRAINER}" \
    imagenetv2,imagenet_sketch,imagenet_a,imagenet_r "${@:2}"
