"""``bench fedtv``: the published recipe's cost against ours, interleaved, in one process."""

from __future__ import annotations

import torch

from fedvlm.bench import flops, machine
from fedvlm.bench.case import SGD, Case, local_round
from fedvlm.bench.machine import Spent, timed
from fedvlm.bench.options import Options, Record
from fedvlm.bench.reference import ReferenceFedTV
from fedvlm.bench.whole_round import Say, compose_cold, measure_round
from fedvlm.federation.rounds import Federation

TORCH = "torch_one"  # our side on torch's own products: the gain without faster kernels
NO_GRADIENT = "image.fusion.key.bias"  # cancels in the softmax: its gradient is rounding noise


def run(o: Options, say: Say = lambda _: None) -> Record:
    """Measure and return a record of plain JSON values.

    Args:
        o: options.
        say: told what goes on.

    Raises:
        ConfigError: a backbone that the reference recipe does not know.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(o.threads)
    try:
        return _run(o, say)
    finally:
        torch.set_num_threads(before)


def _run(o: Options, say: Say) -> Record:
    loads = [machine.load()]
    say(f"building {o.backbone} with random weights, once for each side")
    case = Case(o.backbone, o.classes, o.batch, 2 * o.batch, _tests(o), o.dtype)
    rate = machine.peaks(o.bf16)
    say(f"filling the feature cache with {len(case.samples.labels)} images")
    fill = case.encode()
    setup = _warm(case, o)
    record: Record = {
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
        from fedvlm.bench.profile import busiest

        say("profiling ours")
        fed = case.federation(o.stack, o.stack, 1)
        record["profile"] = busiest(lambda: local_round(fed))
    record["load"] = {"before": loads[0], "highest": max(loads), "cores": machine.cores()}
    return record


def _tests(o: Options) -> int:
    return o.test_images if o.full_round else 0


def _setting(o: Options, case: Case) -> Record:
    return {
        "backbone": o.backbone, "classes": o.classes, "batch": o.batch, "threads": o.threads,
        "stack": o.stack, "n_ctx": int(case.start["text.sigma"].shape[1]), "repeats": o.repeats,
        "dtype": str(o.dtype).removeprefix("torch."), "torch": torch.__version__,
        "trained": sum(v.numel() for v in case.start.values()),
    }


def _flops(o: Options, case: Case) -> Record:
    towers, lengths = case.towers, case.lengths
    prefix = 1 + int(case.start["text.sigma"].shape[1])
    reference = flops.reference_step(towers, o.classes, o.batch)
    fast = flops.fast_step(towers, prefix, lengths)
    return {
        "reference_step": reference, "fast_step": fast, "ratio": reference / fast,
        "image": flops.image(towers), "text_pass": flops.full_text(towers, o.classes),
        "reference_tokens": o.classes * towers.context, "fast_tokens": prefix + sum(lengths),
    }


def _warm(case: Case, o: Options) -> Spent:
    """Make and check the packed tower, the anchor and the layout: once per class list."""
    sigma = case.start["text.sigma"]

    def work() -> None:
        with torch.no_grad():
            case.model.anchor("literal", sigma.shape[1])
            case.model.text(sigma.expand(o.stack, *sigma.shape))

    return timed(work)[1]


# ---- one training step ------------------------------------------------------------------------
def _steps(
    o: Options, case: Case, rate: dict[str, float], loads: list[float], say: Say
) -> Record:
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
        fed.trainer.seen.clear()  # type: ignore[attr-defined]
    reference = case.reference()
    optimizer = reference.optimizer(SGD.lr, SGD.momentum, SGD.weight_decay)
    losses, pairs = [], []
    for i in range(o.repeats):
        say(f"training step, pair {i + 1} of {o.repeats}")
        pixels, labels = batches[i]
        loss, spent = timed(lambda x=pixels, y=labels: reference.train_step(x, y, optimizer))  # type: ignore[misc]
        losses.append(loss)
        pair: Record = {"reference": vars(spent), "reference_image_cpu": reference.image_cpu}
        for name, fed in sides.items():
            with machine.torch_products(name == TORCH):
                _, spent = timed(lambda f=fed: local_round(f))  # type: ignore[misc]
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
    return [float(v[0]) for v in fed.trainer.seen[:steps]]  # type: ignore[attr-defined]


def _tensor_error(reference: ReferenceFedTV, fed: Federation) -> float:
    """Return the largest relative distance of a trained tensor, by the same number of steps."""
    ours = local_round(fed).states[0]["w"]
    theirs = reference.values()
    return max(
        float((ours[n] - theirs[n]).norm() / theirs[n].norm()) for n in theirs if n != NO_GRADIENT
    )
