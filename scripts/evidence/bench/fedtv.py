"""``bench fedtv``: the published recipe's cost against ours, interleaved, in one process.

Training steps; on request a whole round with its evaluation (the published recipe evaluates every
client twice a round, with both towers for each test batch), and ten rounds that start with an empty
feature cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import cast

import torch
from torch import Tensor

from evidence.bench import flops, machine
from evidence.bench.case import SGD, TINY, Case, Shared, local_round, trained
from evidence.bench.machine import Cost, Measurements, busiest, measure
from evidence.bench.reference import ReferenceFedTV
from fedvlm.core.trees import Tree
from fedvlm.evaluation import ClientMeter, Evaluator, panel_of
from fedvlm.federation.batches import SplitBatcher
from fedvlm.federation.rounds import Event, Federation, FedState, RoundFinished

TEST_BATCH = 100
ROUNDS = 10
TORCH = "torch_one"  # our side on torch's own products: the gain without faster kernels
NO_GRADIENT = "image.fusion.key.bias"  # cancels in the softmax: its gradient is rounding noise
Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What to measure; see ``bench.NUMBERS`` for the meaning of each.

    Raises:
        ConfigError: a number that is too small.
    """

    backbone: str = "ViT-B/16"
    classes: int = 50
    batch: int = 32
    repeats: int = 3
    threads: int = 1
    stack: int = 8
    clients: int = 10
    epochs: int = 2
    test_images: int = 100
    bf16: bool = False
    round: bool = False
    cold: bool = False
    profile: bool = False
    dtype: torch.dtype = field(default=torch.float32)

    def __post_init__(self) -> None:
        machine.refuse_below_one(**{name: getattr(self, name) for name in (
            "classes", "batch", "repeats", "threads", "stack", "clients", "epochs")})

    @property
    def full_round(self) -> bool:
        """Whether a whole round is measured; the cold start is composed from it."""
        return self.round or self.cold


def tiny(o: Options) -> Options:
    """Return the same options on a random tiny CLIP with few classes: seconds, no verdict."""
    small = {"backbone": TINY, "classes": min(o.classes, 5), "batch": min(o.batch, 4)}
    return Options(**{**vars(o), **small, "stack": min(o.stack, 3), "clients": min(o.clients, 3),
                      "test_images": 6})


def run(o: Options, say: Say = lambda _: None) -> Measurements:
    """Measure and return a record of plain JSON values.

    Args:
        o: options.
        say: told what goes on.

    Raises:
        ConfigError: a backbone that the reference recipe does not know.
    """
    with machine.threads(o.threads):
        return _run(o, say)


def _run(o: Options, say: Say) -> Measurements:
    loads = [machine.load()]
    say(f"building {o.backbone} with random weights, once for each side")
    case = Case(o.backbone, o.classes, o.batch, 2 * o.batch,
                o.test_images if o.full_round else 0, o.dtype)
    rate = machine.peaks(o.bf16)
    say(f"filling the feature cache with {len(case.samples.labels)} images")
    fill = case.encode()
    setup = _warm(case, o)
    record: Measurements = {
        "setting": _setting(o, case), "cpu": machine.cpu_facts(), "flops": _flops(o, case),
        "once": {
            "fill_cpu_per_image": fill.cpu / len(case.samples.labels),
            "fill_wall_per_image": fill.wall / len(case.samples.labels),
            "text_setup_cpu": setup.cpu,
        },
    }
    record["step"] = _steps(o, case, rate, loads, say)
    record["peaks"] = rate
    if o.full_round:
        record["round"] = measure_round(o, case, say)
        loads.append(machine.load())
    if o.cold:
        record["cold"] = compose_cold(o, record)
    if o.profile:
        say("profiling ours")
        fed = case.federation(o.stack, o.stack, 1)
        record["profile"] = busiest(lambda: local_round(fed))
    record["load"] = {"before": loads[0], "highest": max(loads), "cores": machine.cores()}
    return record


def _setting(o: Options, case: Case) -> Measurements:
    return {
        "backbone": o.backbone, "classes": o.classes, "batch": o.batch, "threads": o.threads,
        "stack": o.stack, "n_ctx": int(case.start["text.sigma"].shape[1]), "repeats": o.repeats,
        "dtype": str(o.dtype).removeprefix("torch."), "torch": torch.__version__,
        "trained": sum(v.numel() for v in case.start.values()),
    }


def _flops(o: Options, case: Case) -> Measurements:
    towers, lengths = case.towers, case.lengths
    prefix = 1 + int(case.start["text.sigma"].shape[1])
    reference = flops.reference_step(towers, o.classes, o.batch)
    fast = flops.fast_step(towers, prefix, lengths)
    return {
        "reference_step": reference, "fast_step": fast, "ratio": reference / fast,
        "image": flops.image(towers), "text_pass": flops.full_text(towers, o.classes),
        "reference_tokens": o.classes * towers.context, "fast_tokens": prefix + sum(lengths),
    }


def _warm(case: Case, o: Options) -> Cost:
    """Make and check the packed tower, the anchor and the layout: once per class list."""
    sigma = case.start["text.sigma"]

    def work() -> None:
        with torch.no_grad():
            case.model.anchor("literal", sigma.shape[1])
            case.model.text(sigma.expand(o.stack, *sigma.shape))

    return measure(work)[1]


# ---- one training step ------------------------------------------------------------------------
def _steps(
    o: Options, case: Case, rate: dict[str, float], loads: list[float], say: Say
) -> Measurements:
    """Interleave reference steps with local rounds of ours, one pair per repeat."""
    epochs = -(-o.repeats // 2)  # two batches per epoch
    batches = case.batches(epochs)
    sides = {TORCH: case.federation(1, 1, epochs)} if machine.onednn_available() else {}
    sides |= {
        f"{prefix}{name}": case.federation(k, k, epochs, bf16=bool(prefix))
        for prefix in (("", "bf16_") if o.bf16 else ("",))
        for name, k in (("one", 1), ("stacked", o.stack))
    }
    for fed in sides.values():  # page faults of the first pass are no property of a step
        local_round(fed)
        fed.trainer.history.clear()  # type: ignore[attr-defined]
    reference = case.reference()
    optimizer = reference.optimizer(SGD.lr, SGD.momentum, SGD.weight_decay)
    losses, pairs = [], []
    for i in range(o.repeats):
        say(f"training step, pair {i + 1} of {o.repeats}")
        pixels, labels = batches[i]
        loss, spent = measure(lambda x=pixels, y=labels: reference.train_step(x, y, optimizer))  # type: ignore[misc]
        losses.append(loss)
        pair: Measurements = {"reference": vars(spent), "reference_image_cpu": reference.image_cpu}
        for name, fed in sides.items():
            with machine.torch_products(name == TORCH):
                _, spent = measure(lambda f=fed: local_round(f))  # type: ignore[misc]
            pair[name] = vars(spent.over(len(batches) * fed.plan.clients))
        for name, value in machine.peaks(o.bf16, tries=2).items():
            rate[name] = max(rate[name], value)
            pair[f"peak_{name}"] = value
        loads.append(machine.load())
        pairs.append(pair)
    return {
        "pairs": pairs, "reference_losses": losses,
        "losses": {n: _losses(f, o.repeats) for n, f in sides.items()},
        "tensors_rel": _tensor_error(reference, sides["one"]) if o.repeats % 2 == 0 else None,
    }


def _losses(fed: Federation, steps: int) -> list[float]:
    """Return client 0's loss at each of the first steps."""
    return [float(v[0]) for v in fed.trainer.history[:steps]]  # type: ignore[attr-defined]


def _tensor_error(reference: ReferenceFedTV, fed: Federation) -> float:
    """Return the largest relative distance of a trained tensor, by the same number of steps."""
    ours = trained(fed, local_round(fed), 0)
    theirs = reference.values()
    return max(
        float((ours[n] - theirs[n]).norm() / theirs[n].norm()) for n in theirs if n != NO_GRADIENT
    )


# ---- a round, and ten from an empty cache ------------------------------------------------------
def measure_round(o: Options, case: Case, say: Say) -> Measurements:
    """Time a round with its evaluation: ours whole, before and after one reference client."""
    fed = case.federation(o.clients, o.stack, o.epochs)
    split = case.samples.split
    data = Shared([split] * o.clients, case.samples.labels.numpy(), split.test)
    source = cast(SplitBatcher, fed.batcher).source
    fed.meter = ClientMeter(fed.model, fed.trainer, source, data)
    sent: list[Tree] = []  # by client 0

    def keep(event: Event) -> None:
        if isinstance(event, RoundFinished) and event.updates is not None:
            sent.append(event.updates.messages()[0])

    evaluator = Evaluator(fed.model, fed.trainer, source, data, panel_of(fed.roster))
    fed.subscribers += [evaluator, keep]
    state = fed.start()
    fed.round(state, 1)
    say(f"a round of {o.clients} clients, ours")
    after, first = measure(lambda: fed.round(state, 1))
    say("the same, reference: one client")
    client, logits, spent = _reference_client(o, case, after)
    say("a round, ours, again")
    _, second = measure(lambda: fed.round(state, 1))
    own = fed.clients.read([0], after.versions)[0]["w"]
    ours = [_logits(fed, case, p) for p in (own | sent[-1], own | after.server["w"])]
    scale = max(float(z.abs().max()) for z in logits)
    worst = max(float((a - b).abs().max()) for a, b in zip(ours, logits, strict=True))
    return {
        "clients": o.clients, "steps": 2 * o.epochs, "test_images": o.test_images,
        "ours": [vars(first), vars(second)], "reference_client": vars(spent),
        "reference_eval_cpu": [s.cpu for s in client], "logits_difference": worst,
        "logits_largest": scale,
    }


def _reference_client(
    o: Options, case: Case, after: FedState
) -> tuple[list[Cost], list[Tensor], Cost]:
    """One client of the published recipe: local training and two full evaluations."""
    reference = case.reference()
    optimizer = reference.optimizer(SGD.lr, SGD.momentum, SGD.weight_decay)
    batches, tests = case.batches(o.epochs), case.test_batches(TEST_BATCH)
    evaluations: list[Cost] = []
    logits: list[Tensor] = []

    def evaluate() -> None:
        output, spent = measure(lambda: reference.evaluate(tests))
        logits.append(output)
        evaluations.append(spent)

    def work() -> None:
        for pixels, labels in batches:
            reference.train_step(pixels, labels, optimizer)
        evaluate()
        reference.set_values(after.server["w"])
        evaluate()

    _, spent = measure(work)
    return evaluations, logits, spent


def _logits(fed: Federation, case: Case, p: dict[str, Tensor]) -> Tensor:
    features = cast(Tensor, case.features)
    x = {"features": features[None, case.samples.train :]}
    with torch.no_grad():
        out: Tensor = fed.trainer.predict(fed.model, {n: v[None] for n, v in p.items()}, x)[0]
    return out


def compose_cold(o: Options, record: Measurements) -> Measurements:
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
