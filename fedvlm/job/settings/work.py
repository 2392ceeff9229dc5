"""The work of a run by its config: rounds, optimiser, schedule, participation, budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from yacs.config import CfgNode

from fedvlm.config.keys import ROLES
from fedvlm.core.errors import ConfigError
from fedvlm.evaluation import panel_of
from fedvlm.federation.aggregation.rules import AggregateSpec
from fedvlm.federation.aggregation.server_optim import ServerOptimSpec
from fedvlm.federation.batches import SplitBatcher
from fedvlm.federation.groups import FAIR
from fedvlm.federation.local.images import Absent
from fedvlm.federation.optim import OptimSpec, RoleSpec, Schedule
from fedvlm.federation.plan import Budget, Plan, Plateau, draw_unseen, plain_work
from fedvlm.federation.reliability.unreliable import Unreliable, parse_absences
from fedvlm.federation.server import Roster
from fedvlm.runs.verify.answer import measure_of

if TYPE_CHECKING:
    from fedvlm.federation.aggregation.fairness import Fairness


def make_plan(cfg: CfgNode, sizes: Sequence[int] = ()) -> Plan:
    """Return rounds, participation, optimiser and schedule of a config.

    Args:
        sizes: training images of each client; FED.MIN_IMAGES reads them.
    """
    o, epochs = cfg.OPTIM, int(cfg.FED.LOCAL_EPOCHS)
    spec = OptimSpec(
        o.NAME, o.LR, o.MOMENTUM, o.WEIGHT_DECAY, o.SGD_DAMPNING, o.SGD_NESTEROV,
        (o.ADAM_BETA1, o.ADAM_BETA2), roles_of(cfg), o.CLIP, o.KEEP_STATE,
        o.ADAM_EPS,
    )
    per_round = o.CLOCK == "round"
    schedule = Schedule(
        o.LR, o.LR_SCHEDULER, epochs if per_round else epochs * int(cfg.FED.ROUNDS),
        tuple(int(s) for s in o.STEPSIZE), o.GAMMA, int(o.WARMUP_EPOCH), o.WARMUP_TYPE,
        o.WARMUP_CONS_LR, o.WARMUP_MIN_LR,
    )
    f = cfg.FED
    aggregator = AggregateSpec(f.AGGREGATOR, f.TRIM, int(f.BYZANTINE), f.CLIP_NORM, f.SAA_TEMP)
    server_optim = ServerOptimSpec(
        f.SERVER_OPTIM, f.SERVER_LR, f.SERVER_MOMENTUM, f.SERVER_BETA1, f.SERVER_BETA2,
        f.SERVER_TAU,
    )
    return Plan(
        int(cfg.FED.ROUNDS), int(cfg.FED.CLIENTS), cfg.FED.FRAC, epochs, cfg.FED.FIRST_ROUND_ALL,
        cfg.FED.NONFINITE, int(cfg.SEED), spec, schedule, per_round,
        "auto" if f.WEIGHTING in FAIR else f.WEIGHTING,
        aggregator, server_optim,
        draw_unseen(int(f.CLIENTS), int(f.UNSEEN_CLIENTS), int(cfg.DATA_SEED),
                    int(f.MIN_IMAGES), sizes),
        int(f.LOCAL_STEPS), span_of(f.EPOCHS_RANGE), int(f.EARLY_STOP), unreliable_of(cfg),
        fairness=fairness_of(cfg),
    )


def fairness_of(cfg: CfgNode) -> Fairness | None:
    """Return what ``FED.WEIGHTING`` says of the clients' losses; None: nothing."""
    kind = str(cfg.FED.WEIGHTING)
    if kind not in FAIR:
        return None
    from fedvlm.federation.aggregation.fairness import Fairness  # start-up: such runs only

    return Fairness(kind, cfg.FED.FAIR_Q, cfg.FED.FAIR_LR, 1.0 / max(cfg.OPTIM.LR, 1e-12))


def unreliable_of(cfg: CfgNode) -> Unreliable:
    """Return what ``FED.UNRELIABLE`` says.

    Raises:
        ConfigError: keys that contradict each other.
    """
    u = cfg.FED.UNRELIABLE
    return Unreliable(
        int(cfg.SEED), int(cfg.FED.ROUNDS), u.DROPOUT, u.STRAGGLERS, tuple(u.SLOWDOWN), u.SLOW_BY,
        u.DEADLINE, u.CLOCK, u.LATE, u.JOIN, u.LEAVE, parse_absences(u.AWAY, int(cfg.FED.CLIENTS)),
        u.QUORUM,
    )


def span_of(value: Sequence[object]) -> tuple[int, ...]:
    """Return ``FED.EPOCHS_RANGE`` as numbers; ``1,4`` on the command line comes as words.

    Raises:
        ConfigError: they are no whole numbers.
    """
    words = [str(n).strip() for n in value]
    if not all(word.isdecimal() for word in words):
        raise ConfigError(
            f"FED.EPOCHS_RANGE {tuple(value)}: expects two whole numbers of epochs, such as (1, 4)"
        )
    return tuple(map(int, words))


def roles_of(cfg: CfgNode) -> dict[str, RoleSpec]:
    """Return what ``OPTIM.<ROLE>`` sets, by role."""
    found = {role.lower(): RoleSpec(n.NAME, n.LR, n.WEIGHT_DECAY)
             for role, n in ((role, cfg.OPTIM[role]) for role in ROLES)}
    return {role: spec for role, spec in found.items() if spec != RoleSpec()}


def make_budget(cfg: CfgNode, plan: Plan, batcher: SplitBatcher | Absent) -> Budget:
    """Return what the run may spend: FedAvg's work under the same config (``FED.BUDGET``)."""
    unit = cfg.FED.BUDGET
    lengths, sizes = (batcher.lengths(range(plan.clients), 1), batcher.sizes(range(plan.clients)))
    cohorts = [] if unit == "rounds" else [
        plan.answering(r + 1, lengths) for r in range(plan.rounds)
    ]
    return Budget(unit, plain_work(unit, cohorts, sizes, plan.effort, batcher.batch_size))


def make_plateau(cfg: CfgNode, plan: Plan, roster: Roster) -> Plateau:
    """Return where a run ends whose validation accuracy is flat (``FED.PATIENCE``).

    A check asks everybody, so there is one for each time that everybody has worked, at most every
    second round.
    """
    panel = panel_of(roster, cohort=int(cfg.TEST.COHORT), data_seed=int(cfg.DATA_SEED))
    return Plateau(
        int(cfg.FED.PATIENCE), [c for c in panel.clients if roster.val[c]],
        max(2, math.ceil(panel.members / plan.cohort)), measure_of(cfg),
    )
