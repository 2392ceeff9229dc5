"""Attackers of a run, differential privacy and secure sums, by its config (``docs/privacy.md``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from yacs.config import CfgNode

from fedvlm.config.engines import of_parties
from fedvlm.config.federation import ATTACKS
from fedvlm.core.errors import ConfigError
from fedvlm.federation.aggregation.rules import AUTO, SIMILARITY
from fedvlm.federation.aggregation.sums import beyond_sums
from fedvlm.federation.batches import NO_WEIGHTS, SplitBatcher
from fedvlm.federation.context import OWN
from fedvlm.federation.groups import PERSONAL, SHARED
from fedvlm.federation.local.images import Absent
from fedvlm.federation.plan import Plan
from fedvlm.federation.trainer import Trainer
from fedvlm.federation.workplace import TrainingStart
from fedvlm.job.inputs import Inputs
from fedvlm.models.backbone import Backbone

if TYPE_CHECKING:
    from fedvlm.federation.aggregation.client_privacy import ClientPrivacy
    from fedvlm.federation.reliability.hostile import Hostile


def add_threats(
    cfg: CfgNode, plan: Plan, start: TrainingStart, sites: Sequence[int], backbone: Backbone,
    trainer: Trainer, inputs: Inputs, batcher: SplitBatcher | Absent,
) -> tuple[Plan, list[str]]:
    """Return the plan with who attacks and what is hidden of clients, and remarks on both."""
    remarks, fed = list[str](), cfg.FED
    if not fed.HOSTILE and (ATTACKS[0] != fed.ATTACK or fed.ATTACK_SCALE or fed.ATTACK_TARGET):
        remarks.append("nobody attacks this run: FED.ATTACK needs a share of hostile clients, "
                       "FED.HOSTILE above 0")
    if fed.DP.DELTA and not any((fed.DP.CLIP, fed.DP.NOISE, fed.DP.EPSILON)):
        remarks.append("no differential privacy: FED.DP.DELTA alone sets none; give FED.DP.CLIP "
                       "and FED.DP.EPSILON")
    if fed.HOSTILE:
        hostile, said = hostile_of(cfg, plan, start, sites, backbone, inputs)
        plan, remarks = replace(plan, hostile=hostile), [*remarks, *said]
    if any((fed.DP.CLIP, fed.DP.NOISE, fed.DP.EPSILON, fed.DP.QUANTILE, fed.DP.SIMILARITY)):
        if fed.DP.UNIT == "client":
            dp, words = privacy_of(cfg, plan, start, trainer, inputs)
            plan = replace(plan, dp=dp)
        else:
            plan, words = image_privacy_of(cfg, plan, start, trainer, batcher)
        remarks = [*remarks, words]
    elif fed.DP.SAMPLING != "shuffle":
        raise ConfigError(f"FED.DP.SAMPLING {fed.DP.SAMPLING}: draws alone hide nothing; give "
                          "FED.DP.UNIT image, FED.DP.CLIP, FED.DP.EPSILON and FED.DP.DELTA too, or "
                          "drop it")
    elif fed.DP.UNIT != "client":
        remarks.append(f"no differential privacy: FED.DP.UNIT {fed.DP.UNIT} alone sets none; give "
                       "FED.DP.CLIP, FED.DP.EPSILON and FED.DP.DELTA")
    if fed.SECURE_SUM:
        from fedvlm.job.sites.sums import check_sums  # start-up: runs with secure sums only

        remarks.append(check_sums(cfg, plan, start.groups, trainer, inputs.counts))
    return plan, remarks


def image_privacy_of(
    cfg: CfgNode, plan: Plan, start: TrainingStart, trainer: Trainer,
    batcher: SplitBatcher | Absent,
) -> tuple[Plan, str]:
    """Return the plan with privacy of images or groups, and words on it (else ``ConfigError``)."""
    # start-up: runs with privacy of images only
    from fedvlm.federation.toolbox import image_privacy as room

    kind, dp = type(trainer), cfg.FED.DP
    if dp.QUANTILE:
        raise ConfigError(
            f"FED.DP.QUANTILE {dp.QUANTILE:g}: the bound follows moves of clients, not gradients; "
            f"drop it, or FED.DP.UNIT {dp.UNIT}"
        )
    if dp.SIMILARITY:
        raise ConfigError(
            f"FED.DP.SIMILARITY True with FED.DP.UNIT {dp.UNIT}: clients add the noise there, and "
            "the server may weigh as it likes; drop it"
        )
    if cfg.OPTIM.CLASS_WEIGHTS != NO_WEIGHTS:
        raise ConfigError(
            f"FED.DP.UNIT {dp.UNIT} with OPTIM.CLASS_WEIGHTS {cfg.OPTIM.CLASS_WEIGHTS}: weights "
            "depend on all images of a client, so that one image moves every gradient; drop one of "
            "the two"
        )
    if cfg.DATASET.CAPTIONS:
        raise ConfigError(
            f"FED.DP.UNIT {dp.UNIT}: the loss of captions compares the images of a batch, so that "
            "no image has a gradient of its own; drop FED.DP or DATASET.CAPTIONS"
        )
    if plan.fairness is not None:
        raise ConfigError(
            f"FED.DP.UNIT {dp.UNIT} with FED.WEIGHTING {cfg.FED.WEIGHTING}: each client would send "
            "its loss, which is an exact function of its images; drop one of the two"
        )
    fits = tuple(trainer.image_fits) if "image_fits" in vars(kind) else ()
    room.check_method(
        cfg.TRAINER.NAME, dp.UNIT, fits=fits, network=getattr(trainer, "network", False),
        trains_by=trainer.trains_by, extras=trainer.releases(start.groups).extras,
        own_privacy=kind.privacy is not Trainer.privacy, own_weight=start.weighting == OWN,
        finetune=start.finetuning.epochs, early_stop=plan.early_stop,
    )
    size = int(cfg.DATALOADER.TRAIN_X.BATCH_SIZE)
    groups = batcher.largest_groups(plan.members) if isinstance(batcher, SplitBatcher) else {}
    how = room.ImagePrivacy(
        dp.UNIT, dp.CLIP, dp.NOISE, dp.DELTA, fits, groups, dp.SAMPLING == "poisson"
    )
    plan, sizes = replace(plan, private=how), start.roster.train.tolist()
    work = plan.worked({r: plan.sample(r) for r in range(1, plan.rounds + 1)}, sizes, size)
    how = room.make_image_privacy(
        how, epsilon=dp.EPSILON, work=work, largest=max(sizes, default=0),
        sites=of_parties(cfg), tight=dp.TIGHT,
    )
    trained = sum(v.numel() for n, v in start.p0.items()
                  if start.groups.of[n] in (SHARED, PERSONAL))
    return replace(plan, private=how), room.beside_the_sum(how, trained, size)


def privacy_of(
    cfg: CfgNode, plan: Plan, start: TrainingStart, trainer: Trainer, inputs: Inputs
) -> tuple[ClientPrivacy, str]:
    """Return a run's client-level privacy, and words on it (``ConfigError``: it does not cover)."""
    # start-up: runs with client-level privacy only
    from fedvlm.federation.aggregation import client_privacy as room

    f = cfg.FED
    if inputs.counts is not None or not inputs.serves:
        raise ConfigError(
            "FED.DP: its noise is drawn from the seed, which every site knows, and a federation of "
            f"sites has fewer than the {room.FEW} clients it needs; drop FED.DP, or simulate with "
            "FED.ENGINE local"
        )
    if f.DP.SAMPLING != "shuffle":
        raise ConfigError(
            f"FED.DP.SAMPLING {f.DP.SAMPLING} draws images, but FED.DP.UNIT client hides clients, "
            "which FED.FRAC draws by coins anyway; drop it, or set FED.DP.UNIT image"
        )
    released = trainer.releases(start.groups)
    room.check_cover(
        cfg.TRAINER.NAME, rule=f.AGGREGATOR, beyond=beyond_sums(trainer, start.groups),
        own_privacy=type(trainer).privacy is not Trainer.privacy, patience=int(f.PATIENCE),
        proxy=trainer.proxy_source, two_sums=bool(f.DP.SIMILARITY),
    )
    temperature, since = similarity_of(cfg, trainer)
    dp = room.make_privacy(
        clip=f.DP.CLIP, noise=f.DP.NOISE, epsilon=f.DP.EPSILON, delta=f.DP.DELTA, rate=f.FRAC,
        clients=len(plan.members), rounds=plan.rounds, seed=plan.seed, quantile=f.DP.QUANTILE,
        temperature=temperature, since=since, chosen=cfg.TEST.SELECT == "val",
        own=room.own_model_reason(trainer, start.groups, start.finetuning.epochs),
        tight=f.DP.TIGHT,
    )
    words = room.drowned(
        dp, sum(start.p0[n].numel() for n in released.shared),
        cfg.TRAINER.NAME if "image_fits" in vars(type(trainer)) else "",
    )
    if temperature:
        words += (f"; weights by similarity, temperature {temperature:g}, by a second noised sum "
                  "(docs/privacy.md)")
    elif not trainer.linear:
        words += (
            f"; the server of {cfg.TRAINER.NAME} reads single updates, of which it gets the one "
            "noised mean only: weights by similarity are all equal then (docs/privacy.md)"
        )
    return dp, f"{words}; {dp.limits()}"


def similarity_of(cfg: CfgNode, trainer: Trainer) -> tuple[float, int]:
    """Return temperature and first round of weights by similarity (``ConfigError``: none here)."""
    fed = cfg.FED
    if not fed.DP.SIMILARITY:
        return 0.0, 1
    if fed.AGGREGATOR == SIMILARITY:
        return float(fed.SAA_TEMP), 1
    if not trainer.similarity or fed.AGGREGATOR != AUTO:
        raise ConfigError(
            f"FED.DP.SIMILARITY True: the server of {cfg.TRAINER.NAME} with FED.AGGREGATOR "
            f"{fed.AGGREGATOR} gives no weights by similarity; drop it, or set FED.AGGREGATOR "
            f"{SIMILARITY}"
        )
    return trainer.similarity, 2


def hostile_of(
    cfg: CfgNode, plan: Plan, start: TrainingStart, sites: Sequence[int], backbone: Backbone,
    inputs: Inputs,
) -> tuple[Hostile, list[str]]:
    """Return who attacks the run, and words on it (``ConfigError``: the clients are real)."""
    from fedvlm.federation.reliability import hostile as room  # start-up: runs with attackers only

    f, spec = cfg.FED, backbone.transform_spec
    if inputs.counts is not None or not inputs.serves:
        raise ConfigError(
            f"FED.HOSTILE {f.HOSTILE:g}: attackers are simulated, but the clients of this run are "
            "parties with images of their own; drop FED.HOSTILE, or simulate with FED.ENGINE local"
        )
    classes = start.roster.classes.shape[1]
    room.check_attack(
        f.ATTACK, shared=bool(start.groups.shared), method=cfg.TRAINER.NAME, pixels=cfg.FED.PLAIN,
        target=int(f.ATTACK_TARGET), classes=classes,
    )
    by_site = sites if f.HOSTILE_BY == "site" else ()
    clients = room.draw_hostile(f.HOSTILE, plan.members, plan.seed, by_site)
    white = tuple((1 - m) / s for m, s in zip(spec.mean, spec.std, strict=True))
    hostile = room.Hostile(
        f.ATTACK, clients, f.ATTACK_SCALE, classes,
        room.Trigger(white, int(f.ATTACK_TARGET)) if f.ATTACK == room.BACKDOOR else None,
    )
    cohort = plan.cohort
    hostile = replace(hostile, cohort=cohort, members=len(plan.members))
    broken = room.broken_assumption(
        plan.aggregator, cohort, min(len(clients), cohort), cfg.TRAINER.NAME
    )
    harm = broken if hostile.used != 0 else ""
    return hostile, [hostile.words(), *filter(None, (hostile.idle(), harm))]
