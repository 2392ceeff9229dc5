"""``audit``: how much of its images a finished run gives away, measured by attacks.

Members are images that a client trained on, others are test images of the same client and classes.
A shadow run trains all clients with the run's method on random halves of both, so that each image
is in half of the shadows (Carlini et al., S&P 2022). All of it is drawn by a seed: the same run
gives the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from yacs.config import CfgNode

from fedvlm.api.auditing.step import COST, step_record
from fedvlm.api.rebuild import adopt_state, kept_models, run_folder, take_start
from fedvlm.api.replay import partition_differences
from fedvlm.config.engines import of_parties
from fedvlm.console.screen import progress
from fedvlm.core import rng
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import read_json
from fedvlm.core.progress import Progress
from fedvlm.core.trees import TreeView, expand
from fedvlm.data.datum import refuse_targets
from fedvlm.data.federated import FederatedData
from fedvlm.evaluation.scores import Batches
from fedvlm.federation.discovery import NO_TRUST, Trust
from fedvlm.federation.rounds import Federation, FedState
from fedvlm.federation.workplace import PersonalModels
from fedvlm.job.build import Built, build_run
from fedvlm.job.inputs import Inputs
from fedvlm.job.record import make_panel
from fedvlm.job.resolve import run_config
from fedvlm.job.results.private import promises_privacy
from fedvlm.job.run import threads_of
from fedvlm.models.backbone import Backbone
from fedvlm.report.pages.audit import claim_sentences, inversion_words, no_better
from fedvlm.report.statistics.membership import (
    RATES,
    Bools,
    Floats,
    auc,
    confidence_of,
    epsilon_bound,
    hit_rate,
    likelihood_ratios,
    random_halves,
)
from fedvlm.runs.finished import FinishedRun, find_finished
from fedvlm.runs.identity import read_manifest
from fedvlm.runs.state import load_newest_state
from fedvlm.runs.verify.check import inspect
from fedvlm.runs.verify.models import START

SHADOWS, LEAST = 16, 4
DEAR = 600.0  # seconds of shadow runs above which they are made only where they are asked for
PERSONAL, GLOBAL = "personal", "global"


class ShadowInputs(Inputs):
    """Other images for the clients of a run; its towers."""

    def __init__(self, given: FederatedData, towers: Backbone) -> None:
        self.given, self.towers = given, towers

    def data(self, cfg: CfgNode, progress: Progress | None) -> FederatedData:
        """See ``Inputs``."""
        return self.given

    def backbone(self, cfg: CfgNode, device: torch.device) -> Backbone:
        """See ``Inputs``."""
        return self.towers


@dataclass(frozen=True)
class Pool:
    """One client's images in the audit: indices ``[n]``, and which of them it trained on."""

    samples: np.ndarray
    member: Bools


@dataclass(frozen=True)
class Signals:
    """Losses of models on images: of each client's own model on its pool, and of the shared one."""

    personal: Mapping[int, Floats]
    shared: Floats


@dataclass(frozen=True)
class Audit:
    """A run to be audited, before any shadow is trained.

    Attributes:
        seconds: what all shadows will take, by the run's own rounds.
        shadows: how many there are; why: why there are none, or empty.
    """

    path: Path
    run: FinishedRun
    cfg: CfgNode
    shadows: int
    seconds: float
    why: str
    seed: int

    def cost(self) -> str:
        """Return what it will cost, for the screen."""
        if not self.shadows:
            return f"no shadow runs: {self.why}; {COST}"
        return (f"{self.shadows} shadow runs of {self.run.protocol['rounds']} rounds: about "
                f"{self.seconds:.0f} s, and building them; {COST}")


def plan_audit(
    folder: str | Path, *, shadows: int | None = None, seed: int = 1,
    changes: Mapping[str, str] | None = None, trust: Trust = NO_TRUST,
) -> Audit:
    """Return what an audit takes; no image is read.

    Args:
        folder: a finished run.
        shadows: shadow runs, an even number; 0: none, only the threshold on losses; None: 16, or
            none where they would take more than ten minutes.
        seed: of all that the audit draws.
        changes: other values of config keys that move no number.

    Raises:
        ConfigError: a number of shadows that cannot be; a run of sites, or on sets of labels.
        DataError: no finished run, or damage.
    """
    if shadows is not None and shadows and (shadows < LEAST or shadows % 2):
        raise ConfigError(f"--shadows {shadows}: they come in pairs, {LEAST} at least (16 to 64 "
                          "are usual); 0 leaves them out")
    path = run_folder(folder)
    verdict = inspect(path)
    if verdict.damage:
        raise DataError(f"{verdict.sentence()}; a damaged run cannot be audited")
    run = find_finished(path)
    if run is None:
        raise DataError(f"'{path}' is not finished: the same command finishes it")
    cfg = run_config(path, {**(changes or {}), "SINKS": "()", "RESUME": ""}, trust)
    if of_parties(cfg):
        raise ConfigError(f"'{path}': the clients' images are at their sites, and an audit trains "
                          "on them; audit a simulation with FED.ENGINE local on data like theirs")
    refuse_targets("fedvlm audit", sets=cfg.DATASET.LABELS)
    if (read_manifest(path) or {}).get("facts", {}).get("client_texts"):
        raise ConfigError("fedvlm audit reads the same templates for all clients, and this run has "
                          "some of single clients (DATASET.TEMPLATES): audit a run without them")
    each = float(run.info.get("seconds_rounds") or 0)
    why = "" if shadows is None or shadows else "--shadows 0"
    if shadows is None:
        shadows = SHADOWS
        if each * shadows > DEAR:
            why = (f"{shadows} of them would take about {each * shadows / 60:.0f} minutes; "
                   f"--shadows {shadows} makes them all the same")
            shadows = 0
    return Audit(path, run, cfg, shadows, each * shadows, why, seed)


def carry_out_audit(plan: Audit) -> dict[str, Any]:
    """Attack the run's models and return what was found, ready for JSON; nothing is written.

    Raises:
        ConfigError, DataError: as a run; the run's tensors or images are not here.
    """
    with threads_of(plan.cfg):
        built = build_run(plan.cfg, progress)
        for clause in partition_differences(built.data, plan.path):
            raise DataError(f"{plan.path}: {clause}: give the place of the images with --root")
        state, models = _recorded(built, plan)
        pools = membership_pools(built, plan.seed)
        every = np.unique(np.concatenate([p.samples for p in pools.values()]))
        target = _signals(built, built.federation, state, models, pools, every)
        found = [_shadow(built, plan, pools, every, n) for n in range(plan.shadows)]
        claimed, covered = _claimed(built, plan.run.results.get("privacy") or {})
        deltas = dict.fromkeys(covered, float(claimed["image_delta"]) if claimed else 0.0)
        rows = _membership(built.data, pools, every, target, found, deltas)
        for row in rows:
            row["covered"] = row["model"] in covered
        told = read_json(plan.path / "released.json") or {}
        return {
            "format": 1, "run": plan.run.digest, "method": plan.run.method,
            "data": built.data.name, "rounds": plan.run.protocol["rounds"],
            "shadows": plan.shadows, "why_no_shadows": plan.why, "seed": plan.seed,
            "images": {"members": int(sum(p.member.sum() for p in pools.values())),
                       "others": int(sum((~p.member).sum() for p in pools.values()))},
            "membership": rows,
            "claimed": claimed,
            "step": step_record(built, plan.seed), "released": told.get("declared", {}),
        }


def _claimed(built: Built, spoken: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """Return what a run claims, and what it means for one image; and the models that it covers.

    What hides the presence of one client hides which images a client has with twice the epsilon
    (from one to none, and from none to the other) and (1 + e^epsilon) delta: group privacy (Vadhan,
    The Complexity of Differential Privacy, 2017, lemma 2.2).
    """
    if not spoken:
        return None, []
    claimed = {k: spoken[k] for k in ("epsilon", "delta", "unit", "words") if k in spoken}
    epsilon, delta = spoken["epsilon"], float(spoken["delta"] or 0.0)
    dp = built.federation.plan.dp
    if dp is not None:
        delta, epsilon = min(1.0, delta * (1 + math.exp(min(epsilon, 700.0)))), 2 * epsilon
    claimed |= {"image_epsilon": epsilon, "image_delta": delta, "own": dp.own if dp else ""}
    return claimed, [GLOBAL] if claimed["own"] else [PERSONAL, GLOBAL]


def worst_auc(record: Mapping[str, Any]) -> float:
    """Return the largest AUC of all attacks of an audit."""
    return max(float(row["auc"]) for row in record["membership"])


def audit_lines(record: Mapping[str, Any]) -> list[str]:
    """Return an audit in at most ten lines, for the screen."""
    shared = record["released"].get("shared", {})
    sent = f"{len(shared)} tensor{'' if len(shared) == 1 else 's'}"
    lines = [f"{record['method']} on {record['data']}: a client sends {sent} a round; "
             f"{record['images']['members']} members, {record['images']['others']} others"]
    for row in record["membership"]:
        rates = ", ".join(f"{100 * r['hits'] / r['members']:.0f} % of members at "
                          f"{100 * r['allowed']:.0f} % false" for r in row["rates"])
        lines.append(f"{row['model']} model, {row['attack']}: AUC {row['auc']:.3f} "
                     f"({row['low']:.3f} to {row['high']:.3f}), {rates}")
    lines += claim_sentences(record)
    step = record["step"]
    if "why" in step:
        lines.append(f"one step: not read: {step['why']}")
    else:
        lines.append(f"labels from one step: {100 * step['label_error']:.1f} % of images counted "
                     f"under a wrong class (a guess: {100 * step['guess_error']:.1f} %)"
                     f"{no_better(step)}")
        if "cosine" in step:
            lines.append("feature from a step on one image: cosine to the true one "
                         f"{step['cosine']:.6f} (worst of {step['images']})")
        lines.append(f"features by gradient inversion: {inversion_words(step['inversion'])}")
    return lines


# ---- models and images ---------------------------------------------------------------------------
def _recorded(built: Built, plan: Audit) -> tuple[FedState, PersonalModels]:
    """Return the run's last state, and its personal models as they were evaluated."""
    path, federation = plan.path, built.federation
    saved, _ = load_newest_state(path / "state", identity=plan.run.digest)
    if saved is None:
        raise DataError(f"'{path}' has no state any more (state/), so there is no model to attack")
    if (path / START).exists():
        take_start(federation, path / START)
    state = adopt_state(path, plan.run.digest, saved, federation)
    clients = list(make_panel(built).clients)
    kept = kept_models(path, built.model.device)
    if kept:
        return state, (([c], expand(kept[c], 1)) for c in clients)
    return state, federation.personal(state, clients)


def membership_pools(built: Built, seed: int) -> dict[int, Pool]:
    """Return each client's members and as many test images of its classes, where it has any."""
    data, out = built.data, {}
    for c in make_panel(built).clients:
        split = data.clients[c]
        test = split.test[np.isin(data.labels[split.test], data.labels[split.train])]
        order = rng.numpy_stream(seed, "audit-others", c).permutation(len(test))
        others = np.sort(test[order[: len(split.train)]])
        if len(others):
            samples = np.concatenate([split.train, others])
            out[c] = Pool(samples, np.arange(len(samples)) < len(split.train))
    if not out:
        raise DataError("no client has test images of classes that it trained on: there is nobody "
                        "to tell members from")
    return out


def _signals(
    built: Built, federation: Federation, state: FedState, models: PersonalModels,
    pools: Mapping[int, Pool], every: np.ndarray,
) -> Signals:
    """Return the losses of a federation's personal models and of its shared one.

    Args:
        built: the audited run, which serves the images of all pools.
    """
    size = int(built.cfg.DATALOADER.TEST.BATCH_SIZE)
    batches, truth = Batches(built.test, size, built.model.device), built.data.labels

    def predictor(params: TreeView) -> Any:
        with torch.no_grad():
            return federation.trainer.predictor(federation.model, dict(params))

    personal: dict[int, Floats] = {}
    none = np.zeros(0, dtype=np.int64)
    for clients, params in models:
        asked = [pools[c].samples if c in pools else none for c in clients]
        found = batches.separate(predictor(params), asked, truth=truth)
        personal |= {c: finite_loss(p.loss) for c, p in zip(clients, found, strict=True)}
    (one,) = batches.shared(predictor(federation.shared(state)), every, 1, truth=truth)
    return Signals(personal, finite_loss(one.loss))


def finite_loss(loss: np.ndarray | None) -> Floats:
    """Return losses; one that is not finite is no sign of a member."""
    return np.nan_to_num(np.asarray(loss, dtype=np.float64), nan=1e6, posinf=1e6)


def _shadow(
    built: Built, plan: Audit, pools: Mapping[int, Pool], every: np.ndarray, number: int
) -> tuple[Signals, dict[int, Bools]]:
    """Train one shadow; return its losses, and which images each client trained on."""
    progress("shadow runs", number, plan.shadows)
    inside = {  # which of a client's images this shadow trains on
        c: random_halves(len(p.samples), plan.shadows, rng.numpy_stream(
            plan.seed, "audit-halves", c))[number] for c, p in pools.items()}
    clients = [
        replace(split, train=np.sort(pools[c].samples[inside[c]])) if c in pools else split
        for c, split in enumerate(built.data.clients)
    ]
    cfg = plan.cfg
    if promises_privacy(built):  # noise is no secret where it is the run's own
        cfg = cfg.clone()
        cfg.defrost()
        cfg.SEED = rng.seed_of(plan.seed, "audit-noise", number) % 2**31
        cfg.freeze()
    shadow = build_run(cfg, inputs=ShadowInputs(
        replace(built.data, clients=clients), built.backbone))
    federation = shadow.federation
    state = federation.run()
    models = federation.personal(state, list(pools))
    return _signals(built, federation, state, models, pools, every), inside


# ---- attacks -------------------------------------------------------------------------------------
def _membership(
    data: FederatedData, pools: Mapping[int, Pool], every: np.ndarray, target: Signals,
    shadows: Sequence[tuple[Signals, Mapping[int, Bools]]], deltas: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Return a row for each model and attack; ``deltas``: of what the run claims of a model."""
    order = list(pools)
    member = np.concatenate([pools[c].member for c in order])
    own = np.concatenate([target.personal[c] for c in order])
    trained = np.zeros(len(data.samples), dtype=bool)
    trained[np.concatenate([pools[c].samples[pools[c].member] for c in order])] = True
    row = partial(_row, among=4 if shadows else 2, deltas=deltas)  # attacks, and what is claimed
    rows = [row(PERSONAL, "threshold on the loss", -own, member),
            row(GLOBAL, "threshold on the loss", -target.shared, trained[every])]
    if not shadows:
        return rows
    name = f"likelihood ratio, {len(shadows)} shadows"
    inside = np.stack([np.concatenate([part[c] for c in order]) for _, part in shadows])
    losses = np.stack([np.concatenate([one.personal[c] for c in order]) for one, _ in shadows])
    ratios = likelihood_ratios(confidence_of(own), confidence_of(losses), inside)
    rows.append(row(PERSONAL, name, ratios, member))
    held = np.zeros((len(shadows), len(data.samples)), dtype=bool)
    for line, (_, part) in zip(held, shadows, strict=True):
        line[np.concatenate([pools[c].samples[part[c]] for c in order])] = True
    held = held[:, every]
    both = held.any(0) & ~held.all(0)  # an image of several clients may be in all shadows
    if not trained[every][both].any() or trained[every][both].all():
        return rows  # nothing to tell apart
    ratios = likelihood_ratios(
        confidence_of(target.shared)[both],
        confidence_of(np.stack([one.shared for one, _ in shadows]))[:, both], held[:, both])
    rows.append(row(GLOBAL, name, ratios, trained[every][both]))
    return rows


def _row(
    model: str, attack: str, signal: Floats, member: Bools, *, among: int,
    deltas: Mapping[str, float],
) -> dict[str, Any]:
    inside, outside = signal[member], signal[~member]
    centre, low, high = auc(inside, outside)
    return {
        "model": model, "attack": attack, "auc": centre, "low": low, "high": high,
        "rates": [asdict(hit_rate(inside, outside, rate)) for rate in RATES],
        "epsilon": epsilon_bound(inside, outside, deltas.get(model, 0.0), among),
    }
