#!/usr/bin/env bash
# PACS: leave one domain out, each in turn.
# bash scripts/domain_generalisation/pacs.sh TRAINER [flags ...]    seeds 1 2 3
exec bash "$(dirname "$0")/leave_one_out.sh" pacs "${1:?TRAINER}" \
    "art_painting cartoon photo sketch" "${@:2}"
