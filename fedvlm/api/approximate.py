"""Approximate unlearning of a client, scored against the run without it (``forget --approximate``).

FedEraser: Liu et al., FedEraser: Enabling Efficient Client-Level Data Removal from Federated
Learning Models, IWQoS 2021: the other clients' stored updates of every second round, turned into
the direction of a short new training. PGA: Halimi et al., Federated Unlearning: How to Efficiently
Erase a Client in FL?, 2022: gradient ascent on the client's images in a ball around the mean of
the others' models, then a few rounds without it.

A run keeps no updates; its rounds are done again to regain them, and that is part of the cost.
Departures: PGA's radius is a third of the distance to the untrained start (the paper: to random
models), its steps have all images of the client (the paper: batches), and it ends at the accuracy
of guessing. Nothing here proves that anything is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvlm.api.audit import ShadowInputs, finite_loss, membership_pools
from fedvlm.api.auditing.step import gradient_at
from fedvlm.api.forget import CLIENT, Forgetting
from fedvlm.api.rebuild import rebuild
from fedvlm.console.rows import format_number, table_lines
from fedvlm.console.screen import progress
from fedvlm.core.errors import ConfigError, DataError, FedvlmError, did_you_mean
from fedvlm.core.rows.store import move_state
from fedvlm.core.stats import mean
from fedvlm.core.trees import Tree, TreeView, expand, pick
from fedvlm.data.datum import refuse_targets
from fedvlm.evaluation.scores import Batches
from fedvlm.federation.aggregation.rules import AUTO, MEAN
from fedvlm.federation.aggregation.server_optim import NONE
from fedvlm.federation.aggregation.updates import Updates, weighted_mean
from fedvlm.federation.optim import clip
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.rounds import Event, Federation, FedState, RoundFinished
from fedvlm.federation.trainer import Trainer
from fedvlm.job.build import Built, build_run, span_of
from fedvlm.job.inputs import Inputs
from fedvlm.job.record import make_panel
from fedvlm.job.resolve import run_config
from fedvlm.job.run import threads_of
from fedvlm.report.statistics.membership import auc
from fedvlm.runs.finished import FinishedRun, find_finished
from fedvlm.runs.state import load_newest_state
from fedvlm.runs.tensors import write_vouched

FEDERASER, PGA = "federaser", "pga"
METHODS = (FEDERASER, PGA)
EVERY = 2  # FedEraser: rounds between stored updates, and how many times less local training
ASCENT, LONGEST, BALL = 100, 5.0, 3.0  # PGA: most steps, longest gradient, distance over radius
RECOVERY = 2  # PGA: rounds without the client afterwards
SAMPLES = "gradient_samples"
NO_GUARANTEE = "approximate: no guarantee"
ABSENT, ALONE = "the client was not in the last round", "the client was alone in the last round"
OF_ALL = "the reference is the model of all"
UNCALIBRATED = "no round was calibrated"


@dataclass
class Spent:
    """What a method cost.

    Attributes:
        rounds, samples: of the method itself; images count once for each gradient.
        regained: samples of rounds of the run that were done again to have what it did not keep.
        note: where the method could not do what its paper says; empty: nowhere.
    """

    rounds: int = 0
    samples: int = 0
    regained: int = 0
    note: str = ""


def check_methods(plan: Forgetting, methods: Sequence[str]) -> None:
    """Refuse what the two methods cannot do.

    Raises:
        ConfigError: no method, none of that name, or one twice; no whole client; a run whose
            server does not take the plain mean of all trained tensors.
    """
    if not methods or len({*methods}) < len(methods):
        raise ConfigError(f"--approximate {','.join(methods)}: expected {' or '.join(METHODS)}, or "
                          "both with a comma, each once")
    for name in methods:
        if name not in METHODS:
            raise ConfigError(f"--approximate {name}: expected {' or '.join(METHODS)}, or both "
                              f"with a comma{did_you_mean(name, METHODS)}")
    if plan.removal.unit != CLIENT or len(plan.removal.clients) != 1 or plan.removal.shared:
        raise ConfigError("--approximate forgets one whole client whose images nobody else has: "
                          "give --client K, or leave --approximate out")
    if plan.parting:
        raise ConfigError("--approximate needs the clients' images, which are at their sites: "
                          "leave it out")
    cfg = run_config(plan.path, plan.changes, plan.trust)
    refuse_targets("fedvlm forget --approximate", sets=cfg.DATASET.LABELS)
    _check_plain(rebuild(plan.path, str(cfg.DEVICE), trust=plan.trust).federation)


def _check_plain(federation: Federation) -> None:
    """Refuse a run whose model is not the plain mean of what its clients send."""
    plan = federation.plan
    cls, groups = type(federation.trainer), federation.groups
    odd = (
        "clients keep tensors of their own" if groups.personal or plan.optim.keep else
        "the server moves tensors of its own" if groups.server or
        plan.server_optim.kind != NONE else
        "its rounds are no plain FedAvg" if (
            cls.combine not in (Trainer.combine, PeftTrainer.combine)
            or cls.aggregate not in (Trainer.aggregate, PeftTrainer.aggregate)
            or cls.client_update is not Trainer.client_update
            or cls.init_client is not Trainer.init_client
            or plan.aggregator.rule not in (AUTO, MEAN)
            or plan.fairness or plan.hostile or plan.dp or plan.private
            or plan.unreliable.buffer
        ) else ""
    )
    if odd or not groups.shared:
        raise ConfigError(
            f"--approximate: {federation.trainer.name}, as configured: "
            f"{odd or 'the clients share no tensor'}; FedEraser and PGA are defined for the "
            "plain mean of shared tensors: leave --approximate out for exact forgetting"
        )


# ---- the methods' formulas -----------------------------------------------------------------------
def calibrated(stored: TreeView, fresh: TreeView) -> Tree:
    """Return updates as long as the stored ones, in the direction of the fresh ones.

    FedEraser's |U| * V / |V|, for each client and tensor.

    Args:
        stored, fresh: ``[K, ...]``.
    """
    return {n: _times(v, _norm(stored[n]) / _norm(v).clamp_min(1e-30)) for n, v in fresh.items()}


def others_mean(model: TreeView, own: TreeView, share: float) -> Tree:
    """Return the mean of the others' models: PGA's reference, (w - p w_i) / (1 - p).

    Args:
        model: the weighted mean of all; own: the client's; share: its weight in that mean.
    """
    return {n: ((v.double() - share * own[n].double()) / (1 - share)).to(v.dtype)
            for n, v in model.items()}


def projected(model: TreeView, centre: TreeView, radius: float) -> Tree:
    """Return the point of a ball that is nearest to a model (no client axis, Euclidean)."""
    far = distance(model, centre)
    if far <= radius:
        return dict(model)
    return {n: centre[n] + (v - centre[n]) * (radius / far) for n, v in model.items()}


def distance(one: TreeView, other: TreeView) -> float:
    """Return the Euclidean distance of two trees."""
    return sum(float((v - other[n]).double().square().sum()) for n, v in one.items()) ** 0.5


def _norm(value: Tensor) -> Tensor:
    return value.double().flatten(1).norm(dim=1)


def _times(value: Tensor, factor: Tensor) -> Tensor:
    shape = (-1, *[1] * (value.dim() - 1))
    return (value.double() * factor.view(shape)).to(value.dtype)


# ---- what they need of the run -------------------------------------------------------------------
def _heard(federation: Federation, state: FedState, round_: int) -> tuple[FedState, RoundFinished]:
    """Return the state after a round, and what the server heard in it."""
    events: list[Event] = []
    federation.subscribers[:] = [events.append]
    after = federation.round(state, round_)
    (done,) = [e for e in events if isinstance(e, RoundFinished)]
    return after, done


def _at(federation: Federation, model: TreeView) -> FedState:
    """Return a state in which nobody has worked and the model is another."""
    state = federation.start()
    return replace(state, server={**state.server, "w": state.server["w"] | dict(model)})


def _rest(told: Updates | None, gone: int) -> Updates | None:
    """Return a round's updates without one client's; None where no other sent any."""
    at = [k for k, c in enumerate(told.clients) if c != gone] if told else []
    return told.take(at) if told and at else None


def _moves(told: Updates) -> Tree:
    return {n: v - told.received[n] for n, v in told.params.items()}


def _final(path: Path, run: FinishedRun, built: Built, only: int | None = None) -> Tree | None:
    """Return the shared tensors that a run has kept; None: it has none of this round."""
    saved, _ = load_newest_state(path / "state", identity=run.digest, only=only)
    if saved is None:
        return None
    return pick(move_state(saved.server, built.model.device)["w"], built.federation.groups.shared)


def _check_replay(again: TreeView, kept: TreeView, path: Path) -> None:
    if not all(torch.equal(again[n], v) for n, v in kept.items()):
        raise DataError(f"'{path}': its rounds give other bits on this machine, so the updates of "
                        "its clients cannot be regained; use the machine and versions of the run")


def federaser(
    old: Built, short: Built, gone: int, rounds: int, kept: TreeView, path: Path
) -> tuple[Tree, Spent]:
    """Return FedEraser's model: stored updates of the others, calibrated round by round.

    Args:
        old: the run; short: the run without the client, with fewer local epochs.
        rounds: of the run; kept: its last shared tensors, which the regained rounds must give.
    """
    spent, stored = Spent(), dict[int, Updates]()
    state = old.federation.start()
    for round_ in range(1, rounds + 1):
        progress("regaining updates", round_, rounds)
        state, done = _heard(old.federation, state, round_)
        spent.regained += int(done.counters.get(SAMPLES, 0))
        rest = _rest(done.updates, gone) if (round_ - 1) % EVERY == 0 else None
        if rest is not None:
            stored[round_] = rest
    _check_replay(state.server["w"], kept, path)
    state = short.federation.start()
    for round_, rest in stored.items():
        base, moves = state.server["w"], _moves(rest)
        if round_ > 1:  # the first is from the untrained start, which no client has touched
            state, done = _heard(short.federation, state, round_)
            if done.updates is None or done.updates.clients != rest.clients:
                raise FedvlmError(f"round {round_} has other clients without client {gone}")
            spent.rounds, spent.samples = (
                spent.rounds + 1, spent.samples + int(done.counters.get(SAMPLES, 0)))
            moves = calibrated(moves, _moves(done.updates))
        step = weighted_mean(replace(rest, params=moves))
        model = {n: base[n] + v for n, v in step.items()}
        state = replace(state, server={**state.server, "w": base | model})
    return pick(state.server["w"], old.federation.groups.shared), spent


def ascent(
    old: Built, without: Built, gone: int, rounds: int, before: Tree | None, kept: TreeView,
    path: Path,
) -> tuple[Tree, Spent]:
    """Return PGA's model: ascent on the client's images near the others' mean, then recovery.

    Args:
        old, rounds, kept: as of ``federaser``; without: the run without the client.
        before: the shared tensors one round before the last; None: that round is regained.

    If the client was not in the last round, the ball is around the model of all; a note says so.
    """
    spent, federation = Spent(), old.federation
    first = rounds if before is not None else 1
    state = federation.start() if before is None else _at(federation, before)
    for round_ in range(first, rounds + 1):
        state, done = _heard(federation, state, round_)
        spent.regained += int(done.counters.get(SAMPLES, 0))
    _check_replay(state.server["w"], kept, path)
    told, reference = done.updates, dict(kept)
    if told is not None and gone in told.clients and len(told) > 1:
        at = told.clients.index(gone)
        own = {n: v[at] for n, v in told.params.items()}
        reference = others_mean(kept, own, float(told.weight[at] / told.weight.sum()))
    else:
        spent.note = f"{ALONE if told is not None and gone in told.clients else ABSENT}: {OF_ALL}"
    radius = distance(reference, federation.p0) / BALL
    samples, model = np.asarray(old.data.clients[gone].train), reference
    guess = 100 / len(old.data.classnames)
    for _ in range(ASCENT):
        if _accuracy(old, model, samples) <= guess:
            break
        slope = clip(expand(gradient_at(old, federation.p0 | model, samples), 1), LONGEST)
        rate = float(old.cfg.OPTIM.LR)
        model = projected({n: v + rate * slope[n][0] for n, v in model.items()}, reference, radius)
        spent.samples += len(samples)
    state = _at(without.federation, model)
    for round_ in range(1, RECOVERY + 1):
        state, done = _heard(without.federation, state, round_)
        spent.rounds, spent.samples = (
            spent.rounds + 1, spent.samples + int(done.counters.get(SAMPLES, 0)))
    return pick(state.server["w"], federation.groups.shared), spent


# ---- scores --------------------------------------------------------------------------------------
def _predictions(built: Built, model: TreeView, samples: np.ndarray) -> Any:
    federation = built.federation
    batches = Batches(
        built.test, int(built.cfg.DATALOADER.TEST.BATCH_SIZE), built.model.device)
    with torch.no_grad():
        predict = federation.trainer.predictor(
            federation.model, expand(federation.p0 | dict(model), 1))
    return batches.shared(predict, samples, 1, truth=built.data.labels)[0]


def _accuracy(built: Built, model: TreeView, samples: np.ndarray) -> float:
    right = _predictions(built, model, samples).labels == built.data.labels[samples]
    return 100 * float(right.mean())


def knowledge_of(built: Built, model: TreeView, gone: int) -> dict[str, float | None]:
    """Return what a shared model still knows of a client, and what it is worth to the others.

    Returns:
        ``forgotten``: accuracy on the client's training images, percent; ``auc``: of the loss
        threshold that tells them from its test images (0.5: it cannot; None: it has none of these
        classes); ``kept``: mean accuracy of the other clients on their test images, percent.
    """
    data = built.data
    try:
        pool = membership_pools(built, 1).get(gone)
    except DataError:
        pool = None
    found = None
    if pool is not None:
        signal = -finite_loss(_predictions(built, model, pool.samples).loss)
        found = auc(signal[pool.member], signal[~pool.member])[0]
    return {
        "forgotten": _accuracy(built, model, np.asarray(data.clients[gone].train)), "auc": found,
        "kept": mean(_accuracy(built, model, np.asarray(data.clients[c].test))
                     for c in make_panel(built).clients if c != gone and len(data.clients[c].test)),
    }


def score_approximate(
    plan: Forgetting, exact: Path, methods: Sequence[str]
) -> tuple[list[dict[str, Any]], list[Path]]:
    """Forget a client approximately, too; return a row for each model, and what was written.

    Args:
        exact: the run without the client (``carry_out``).

    Raises:
        ConfigError: as ``check_methods``.
        DataError: tensors of a run are not there any more, or cannot be made again here.
    """
    (gone,), rounds = plan.removal.clients, int(plan.run.protocol["rounds"])
    same = {k: v for k, v in plan.changes.items() if k in ("DATASET.ROOT", "SINKS", "RESUME")}
    cfg = run_config(plan.path, same, plan.trust)
    done = find_finished(exact)
    with threads_of(cfg):
        old = build_run(cfg, progress)
        _check_plain(old.federation)
        kept = _final(plan.path, plan.run, old)
        new = _final(exact, done, old) if done else None
        if kept is None or new is None or done is None:
            raise DataError(f"'{plan.path if kept is None else exact}' has no state any more "
                            "(state/), so there is no model to compare with")
        rows = [{"model": "the run"} | knowledge_of(old, kept, gone) | _cost(plan.run),
                {"model": "exact"} | knowledge_of(old, new, gone) | _cost(done)]
        files = []
        for name in methods:
            model, spent = _apply(name, plan, old, gone, rounds, kept)
            row = {"model": name} | knowledge_of(old, model, gone) | {
                "rounds": spent.rounds, "samples": spent.samples, "regained": spent.regained,
                "note": spent.note}
            rows.append(row)
            place = Path(plan.changes["OUTPUT_DIR"]) / "forget" / plan.index["sha256"][:8]
            place.mkdir(parents=True, exist_ok=True)
            write_vouched(place / name, model, {
                "format": 1, "exact": False, "says": NO_GUARANTEE, "of": plan.run.digest,
                "compared_with": done.digest, "clients": [gone], "scores": row,
                "sha256": "", "bytes": 0,
            })
            files.append(place / f"{name}.safetensors")
    return rows, files


def score_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the scores as a table with what its columns mean, for the screen."""
    heads = {"model": "model", "forgotten": "its images, %", "kept": "others, %",
             "rounds": "rounds", "samples": "samples", "regained": "samples regained"}
    shown = [{heads["model"]: r["model"], heads["forgotten"]: r["forgotten"],
              "AUC": format_number(r["auc"], 3), **{heads[k]: r[k] for k in list(heads)[2:]}}
             for r in rows]
    return [
        *table_lines(shown),
        *(f"{r['model']}: {r['note']}" for r in rows if r.get("note")),
        "its images: accuracy on the client's training images; AUC: of telling them from its test "
        "images by the loss; others: mean accuracy of the other clients",
        "samples regained: rounds of the run that were done again, as it keeps no updates",
        f"{NO_GUARANTEE}: only the exact run is certified",
    ]


def _apply(
    name: str, plan: Forgetting, old: Built, gone: int, rounds: int, kept: Tree
) -> tuple[Tree, Spent]:
    """Run one method on builds of its own, as a round leaves rows of clients behind."""
    cfg = run_config(plan.path, plan.changes, plan.trust)
    fewer, note = ({}, "") if name == PGA else halved_epochs(cfg.FED)
    data = Inputs().data(cfg, progress)
    cfg = run_config(plan.path, {**plan.changes, **fewer}, plan.trust)
    other = build_run(cfg, inputs=ShadowInputs(data, old.backbone))
    again = build_run(old.cfg, inputs=ShadowInputs(old.data, old.backbone))
    if name == FEDERASER:
        model, spent = federaser(again, other, gone, rounds, kept, plan.path)
        spent.note = note if spent.rounds else UNCALIBRATED
        return model, spent
    before = _final(plan.path, plan.run, old, rounds - 1) if rounds > 1 else None
    return ascent(again, other, gone, rounds, before, kept, plan.path)


def halved_epochs(fed: Any) -> tuple[dict[str, str], str]:
    """Return half the local training (``FED``) as changes, and a note where it cannot be halved."""
    epochs, steps, span = int(fed.LOCAL_EPOCHS), int(fed.LOCAL_STEPS), span_of(fed.EPOCHS_RANGE)
    fewer = {"FED.LOCAL_EPOCHS": str(max(1, epochs // EVERY)),
             "FED.LOCAL_STEPS": str(-(-steps // EVERY))}
    if span:
        fewer["FED.EPOCHS_RANGE"] = ",".join(str(max(1, n // EVERY)) for n in span)
    once = (steps or (span[-1] if span else epochs)) == 1
    return fewer, f"1 local {'step' if steps else 'epoch'}: not halved" if once else ""


def _cost(run: FinishedRun) -> dict[str, int]:
    """Return what a run cost, as its metrics say."""
    rows = run.rounds()[1:]
    return {"rounds": len(rows), "samples": sum(int(r["counters"].get(SAMPLES, 0)) for r in rows),
            "regained": 0}
