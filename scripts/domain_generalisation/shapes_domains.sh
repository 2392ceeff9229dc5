#!/usr/bin/env bash
# ShapesDomains: leave one domain out, each in turn.
# bash scripts/domain_generalisation/shapes_domains.sh TRAINER [flags ...]    seeds 1 2 3
exec bash "$(dirname "$0")/leave_one_out.sh" shapes_domains "${1:?TRAINER}" \
    "clean negative photo pixel sketch" "${@:2}"
