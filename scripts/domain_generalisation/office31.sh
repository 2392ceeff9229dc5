#!/usr/bin/env bash
# Office31: leave one domain out, each in turn.
# bash scripts/domain_generalisation/office31.sh TRAINER [flags ...]    seeds 1 2 3
exec bash "$(dirname "$0")/leave_one_out.sh" office31 "${1:?TRAINER}" \
    "amazon dslr webcam" "${@:2}"
