#!/usr/bin/env bash
# Base to new on CoOp's eleven sets; those without data (exit code 3) are left out and named.
# bash scripts/base2new/all.sh TRAINER [flags ...]    seeds 1 2 3
set -e
for dataset in imagenet caltech101 oxford_pets stanford_cars oxford_flowers food101 fgvc_aircraft \
    sun397 dtd eurosat ucf101; do
    bash "$(dirname "$0")/run.sh" "$dataset" "${1:?TRAINER}" "${@:2}" || case $? in
        3) absent+=" $dataset" ;; *) exit $? ;; esac
done
[ -z "$absent" ] || { echo "left out, no data:$absent" >&2; exit 3; }
