"""Secure sums of a run over sites (``FED.SECURE_SUM``): what they refuse, and what they promise."""

from __future__ import annotations

from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError
from fedvlm.distributed.server.remote import RemoteEngine
from fedvlm.federation.aggregation.sums import beyond_sums, reads_single, weighs_by
from fedvlm.federation.groups import Groups
from fedvlm.federation.plan import Plan
from fedvlm.federation.server import Roster
from fedvlm.federation.trainer import Trainer

KEY = "FED.SECURE_SUM"


def engine_of(cfg: CfgNode) -> type[RemoteEngine]:
    """Return the engine that asks the sites of a run."""
    if not cfg.FED.SECURE_SUM:
        return RemoteEngine
    from fedvlm.distributed.sums.server import SumEngine  # start-up: runs with secure sums only

    return SumEngine


def check_sums(
    cfg: CfgNode, plan: Plan, groups: Groups, trainer: Trainer, counts: Roster | None
) -> str:
    """Return what is to be said of a run's secure sums.

    Args:
        counts: what the sites told, at the coordinator.

    Raises:
        ConfigError: something of the run needs single updates, or there are too few sites.
    """
    # start-up: runs with secure sums only
    from fedvlm.distributed.sums.masks import FEWEST, require_cryptography, threshold

    require_cryptography()
    if counts is None:  # whatever the coordinator does with it
        return f"{KEY}: updates leave this site in masked sums only"
    beyond = beyond_sums(trainer, groups, exact=True, more=plan.aggregator)
    temperature, _ = weighs_by(trainer, plan.aggregator)
    if beyond:
        raise ConfigError(f"{KEY} does not cover {cfg.TRAINER.NAME}: {beyond}")
    reads = {
        f"FED.AGGREGATOR {cfg.FED.AGGREGATOR}":
            reads_single(cfg.FED.AGGREGATOR) and not temperature,
        f"FED.WEIGHTING {cfg.FED.WEIGHTING}": plan.fairness is not None,
        f"FED.ASK.MAX_NORM {cfg.FED.ASK.MAX_NORM:g}": cfg.FED.ASK.MAX_NORM > 0,
    }
    for key, holds in reads.items():
        if holds:
            raise ConfigError(f"{KEY} with {key}: it looks at single updates, which the server "
                              "does not see; drop one of them")
    if type(trainer).summands is not Trainer.summands and plan.rounds > 1:
        raise ConfigError(f"{KEY} with FED.ROUNDS {plan.rounds}: the sums of {cfg.TRAINER.NAME} "
                          "are those of images and the same in every round; of two rounds over "
                          "other clients the difference would show single ones; set --rounds 1, "
                          "without options that need a second one (TRAINER.AFL.SHARES)")
    sites = len(set(counts.site.tolist()))
    if sites < FEWEST:
        raise ConfigError(f"{KEY} needs {FEWEST} sites, and {sites} are here: of two, each would "
                          "learn the other's update")
    need = threshold(sites)
    return (
        f"{KEY}: the server learns the sum of the updates of {sites} sites, and no site's own; "
        f"{need} of them have to stay to the end of a round"
        + ("; nobody may drop out" if need == sites else "")
        + (f"; clients compute their weights by similarity, temperature {temperature:g}: one image "
           f"may weigh up to e^{2 / temperature:.3g} times as much as another" if temperature
           else "") +
        f"; {sites - 1} sites that tell each other what they sent learn that of the last one; "
        "this holds against a coordinator that follows the protocol and only reads, and not "
        "against one that departs from it (docs/privacy.md); numbers of evaluations are not covered"
    )
