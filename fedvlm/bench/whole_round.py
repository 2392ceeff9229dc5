"""A whole round with its evaluation, and ten rounds that start with an empty feature cache.

The published recipe evaluates every client twice a round, with both towers for each test batch.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import cast

import torch
from torch import Tensor

from fedvlm.bench.case import SGD, Case, Shared
from fedvlm.bench.machine import Spent, timed
from fedvlm.bench.options import Options, Record
from fedvlm.evaluation.protocol import Evaluator
from fedvlm.federation.batches import SplitBatcher
from fedvlm.federation.events import FedState
from fedvlm.federation.rounds import Federation

TEST_BATCH = 100
ROUNDS = 10
Say = Callable[[str], None]


def measure_round(o: Options, case: Case, say: Say) -> Record:
    """Time a round with its evaluation: ours whole, before and after one reference client."""
    fed = case.federation(o.clients, o.stack, o.epochs)
    split = case.samples.split
    data = Shared([split] * o.clients, case.samples.labels.numpy(), split.test)
    source = cast(SplitBatcher, fed.batcher).source
    evaluator = Evaluator(fed.model, fed.trainer, source, data)
    fed.subscribers.append(lambda event: void(evaluator(event)))
    state = fed.start()
    fed.round(state, 1)
    say(f"a round of {o.clients} clients, ours")
    after, first = timed(lambda: fed.round(state, 1))
    say("the same, reference: one client")
    client, logits, spent = _reference_client(o, case, after)
    say("a round, ours, again")
    _, second = timed(lambda: fed.round(state, 1))
    ours = [_logits(fed, case, p) for p in _models(after)]
    scale = max(float(z.abs().max()) for z in logits)
    worst = max(float((a - b).abs().max()) for a, b in zip(ours, logits, strict=True))
    return {
        "clients": o.clients, "steps": 2 * o.epochs, "test_images": o.test_images,
        "ours": [vars(first), vars(second)], "reference_client": vars(spent),
        "reference_eval_cpu": [s.cpu for s in client], "logits_difference": worst,
        "logits_largest": scale,
    }


def void(_: object) -> None:
    """Drop a subscriber's result."""


def _models(after: FedState) -> list[dict[str, Tensor]]:
    """Client 0's model before and after the aggregate reaches it."""
    own = after.clients[0]["w"]
    return [own, own | after.server["w"]]


def _reference_client(
    o: Options, case: Case, after: FedState
) -> tuple[list[Spent], list[Tensor], Spent]:
    """One client of the published recipe: local training and two full evaluations."""
    reference = case.reference()
    optimizer = reference.optimizer(SGD.lr, SGD.momentum, SGD.weight_decay)
    batches, tests = case.batches(o.epochs), case.test_batches(TEST_BATCH)
    evaluations: list[Spent] = []
    logits: list[Tensor] = []

    def evaluate() -> None:
        found, spent = timed(lambda: reference.evaluate(tests))
        logits.append(found)
        evaluations.append(spent)

    def work() -> None:
        for pixels, labels in batches:
            reference.train_step(pixels, labels, optimizer)
        evaluate()
        reference.set_values(after.server["w"])
        evaluate()

    _, spent = timed(work)
    return evaluations, logits, spent


def _logits(fed: Federation, case: Case, p: dict[str, Tensor]) -> Tensor:
    features = cast(Tensor, case.features)
    x = {"features": features[None, case.samples.train :]}
    with torch.no_grad():
        out: Tensor = fed.trainer.predict(fed.model, {n: v[None] for n, v in p.items()}, x)[0]
    return out


def compose_cold(o: Options, record: Record) -> Record:
    """Compose ten rounds that start with an empty feature cache."""
    rounds, work = ROUNDS, record["round"]
    images = o.clients * (2 * o.batch + o.test_images)
    ours = median(s["cpu"] for s in work["ours"])
    once = images * record["once"]["fill_cpu_per_image"] + record["once"]["text_setup_cpu"]
    reference = rounds * o.clients * work["reference_client"]["cpu"]
    return {
        "rounds": rounds, "images": images, "fill_cpu": once, "ours_cpu": once + rounds * ours,
        "reference_cpu": reference, "ratio": reference / (once + rounds * ours),
    }
