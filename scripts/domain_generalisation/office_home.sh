#!/usr/bin/env bash
# OfficeHome: leave one domain out, each in turn.
# bash scripts/domain_generalisation/office_home.sh TRAINER [flags ...]    seeds 1 2 3
exec bash "$(dirname "$0")/leave_one_out.sh" office_home "${1:?TRAINER}" \
    "art clipart product real_world" "${@:2}"
