#!/usr/bin/env bash
# DomainNetFull: leave one domain out, each in turn.
# bash scripts/domain_generalisation/domainnet_full.sh TRAINER [flags ...]    seeds 1 2 3
exec bash "$(dirname "$0")/leave_one_out.sh" domainnet_full "${1:?TRAINER}" \
    "clipart infograph painting quickdraw real sketch" "${@:2}"
