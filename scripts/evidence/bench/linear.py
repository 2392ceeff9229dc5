"""``bench linear``: the engine beside what one would write by hand for the same round.

A round of a linear head on cached features, the least training there is: 512 features, 10 classes,
50 samples a client, one step of SGD, the weighted mean. Three sides, in one process, one round each
in turn: **bmm**, a few lines of batched products for exactly this model, gradient by hand, nothing
checked; **loop**, one client after the other with torch's autograd; **ours**, ``Federation.round``
with every check, shuffle and message. All three end in the same model, within rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from evidence.bench import machine
from evidence.bench.machine import Measurements
from evidence.bench.scale import CLASSES, HEAD, RATE, TRAIN, WIDTH, build
from fedvlm.console.rows import table_lines
from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import Tree
from fedvlm.models.features.sources import FeatureSource

SIDES = ("bmm", "loop", "ours")
CLIENTS, WARM, NEAR = 1000, 2, 1e-5


def bmm_round(features: Tensor, labels: Tensor, rows: Tensor, old: Tree) -> Tree:
    """Return the global model after one step of every client, all of them at once.

    Args:
        features, labels: of the pool, ``[n, d]`` and ``[n]``.
        rows: samples of each client, ``[K, B]``.
        old: ``head.weight`` ``[C, d]`` and ``head.bias`` ``[C]``.
    """
    k, n = rows.shape
    x = features.index_select(0, rows.flatten()).view(k, n, -1)
    weight = old["head.weight"].expand(k, -1, -1)
    slope = torch.baddbmm(old["head.bias"], x, weight.mT).softmax(-1)
    slope.scatter_add_(2, labels[rows][..., None], torch.full((k, n, 1), -1.0))
    slope /= n
    return {"head.weight": (weight - RATE * (slope.mT @ x)).mean(0),
            "head.bias": (old["head.bias"] - RATE * slope.sum(1)).mean(0)}


def loop_round(features: Tensor, labels: Tensor, rows: Tensor, old: Tree) -> Tree:
    """Return the same, one client after the other, the gradient by autograd."""
    total = {name: torch.zeros_like(v) for name, v in old.items()}
    for own in rows:
        leaves = {name: v.clone().requires_grad_() for name, v in old.items()}
        logits = F.linear(features[own], leaves["head.weight"], leaves["head.bias"])
        F.cross_entropy(logits, labels[own]).backward()
        with torch.no_grad():
            for name, v in leaves.items():
                total[name] += v - RATE * v.grad if v.grad is not None else v
    return {name: v / len(rows) for name, v in total.items()}


def run(cohort: int, repeats: int, threads: int = 1) -> Measurements:
    """Measure and return a record of plain JSON values.

    Args:
        cohort: clients of a round, of at least as many.
        repeats: rounds of each side, in turn.

    Raises:
        ConfigError: a number below 1.
        FedvlmError: the sides end in different models.
    """
    machine.refuse_below_one(cohort=cohort, repeats=repeats, threads=threads)
    with machine.threads(threads):
        spent, gap = _measure(cohort, repeats)
    least = {side: min(each) for side, each in spent.items()}
    pairs = {side: median(ours / other for ours, other in zip(spent["ours"], each, strict=True))
             for side, each in spent.items()}
    return {
        "setting": {"cohort": cohort, "repeats": repeats, "threads": threads, "train": TRAIN,
                    "classes": CLASSES, "width": WIDTH, "torch": torch.__version__},
        "load": {"after": machine.load(), "cores": machine.cores()}, "difference": gap,
        "per_client_ms": {side: 1000 * least[side] / cohort for side in SIDES},
        "ours_over": {side: least["ours"] / least[side] for side in SIDES},
        "ours_over_in_pairs": pairs,
    }


def _measure(cohort: int, repeats: int) -> tuple[dict[str, list[float]], float]:
    """Return the CPU seconds of every side's rounds, and how far their models are apart."""
    built = build(HEAD, max(CLIENTS, cohort), cohort)
    fed, number = built.federation, WARM + 1
    state = fed.start()
    for round_ in range(1, number):
        state = fed.round(state, round_)
    source, old = cast(FeatureSource, built.test), fed.shared(state)
    own = {name: v[0] for name, v in old.items()}
    clients = fed.plan.sample(number)
    rows = torch.stack([torch.from_numpy(built.data.clients[c].train) for c in clients])
    given = cast(Tensor, source.features[0]), source.labels, rows, own
    sides: dict[str, Callable[[], object]] = {
        "bmm": partial(bmm_round, *given), "loop": partial(loop_round, *given),
        "ours": lambda: fed.shared(fed.round(state, number)),
    }
    gap = _gap([sides["bmm"](), sides["loop"](), sides["ours"]()])
    spent: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(repeats):
        for side, work in sides.items():
            began = time.process_time()
            work()
            spent[side].append(time.process_time() - began)
    return spent, gap


def _gap(models: Sequence[object]) -> float:
    """Return the largest difference of the sides' models from the first one's.

    Raises:
        FedvlmError: it is more than rounding: the sides did not do the same work.
    """
    first, *others = cast(Sequence[Tree], models)
    gap = max(float((other[n] - v).abs().max()) for other in others for n, v in first.items())
    if not gap < NEAR:
        raise FedvlmError(f"the sides end in models that differ by {gap:.1e}, so their times are "
                          "not of the same work")
    return gap


def lines(record: Measurements) -> list[str]:
    """Return the report."""
    s, load = record["setting"], record["load"]
    rows = [{"side": side, "ms/client": f"{record['per_client_ms'][side]:.4f}",
             "ours/side": f"{record['ours_over'][side]:.2f}",
             "in pairs": f"{record['ours_over_in_pairs'][side]:.2f}"} for side in SIDES]
    return [
        f"one round of {s['cohort']} clients, a linear head of {s['classes']} classes on "
        f"{s['width']} features, {s['train']} samples and one step each; least CPU time of "
        f"{s['repeats']} rounds in turn, {s['threads']} thread(s); load average "
        f"{load['after']:.1f} on {load['cores']} core(s)",
        *table_lines(cast(list[dict[str, object]], rows)),
        "ours/side: of the least times; in pairs: median of the ratios round by round; models "
        f"differ by at most {record['difference']:.1e}",
    ]
