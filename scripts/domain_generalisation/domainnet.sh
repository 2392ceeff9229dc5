#!/usr/bin/env bash
# DomainNet: leave one domain out, each in turn.
# bash scripts/domain_generalisation/domainnet.sh TRAINER [flags ...]    seeds 1 2 3
exec bash "$(dirname "$0")/leave_one_out.sh" domainnet "${1:?TRAINER}" \
    "clipart infograph painting quickdraw real sketch" "${@:2}"
