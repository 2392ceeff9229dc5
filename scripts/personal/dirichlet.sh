#!/usr/bin/env bash
# Personalised accuracy under label skew, as the FedTV family has it on CIFAR: 100 clients, a tenth
# of them per round, 150 rounds, all images, Dirichlet shares (BETA 0.3 or 0.1).
# bash scripts/personal/dirichlet.sh DATASET TRAINER BETA [flags ...]    seeds 1 2 3
exec bash "$(dirname "$0")/../dataset.sh" "${1:?DATASET}" "${2:?TRAINER}" \
    --partition dirichlet --beta "${3:?BETA}" --num-users 100 --frac 0.1 --rounds 150 --shots -1 \
    "${@:4}"
