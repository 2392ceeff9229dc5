#!/usr/bin/env bash
# OfficeCaltech10: leave one domain out, each in turn.
# bash scripts/domain_generalisation/office_caltech10.sh TRAINER [flags ...]    seeds 1 2 3
exec bash "$(dirname "$0")/leave_one_out.sh" office_caltech10 "${1:?TRAINER}" \
    "amazon caltech dslr webcam" "${@:2}"
