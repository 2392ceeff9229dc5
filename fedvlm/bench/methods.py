"""``bench methods``: every trainer beside its own plain path (``FED.PLAIN``), in one process.

Both sides are the main job's own build of the same config: the fast one with cached features,
packed prompts and stacked clients, the plain one with images through the tower in every batch,
full-length texts and clients one by one. The built-in shapes are the data. ``--peft`` measures the
methods with other trainable sets, ``all`` with each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from fedvlm.bench import machine
from fedvlm.bench.machine import Measurements, measure
from fedvlm.console.rows import table_lines
from fedvlm.core.errors import ConfigError
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.rounds import Federation, RoundFinished
from fedvlm.job.build import build as build_run
from fedvlm.job.flags import expand, parse
from fedvlm.job.resolve import resolve

Losses = dict[tuple[int, int, str], float]  # (round, client, name) -> mean of the round

BACKBONES = {
    "tiny": ("--backbone", "tiny"),
    "random-small": ("--backbone", "ViT-S-32-alt", "--opts", "MODEL.BACKBONE.PRETRAINED", "False"),
}
COMMON = ("--demo", "--device", "cpu", "--shots", "4")
FP32_LOSS = 1e-5
SETS = ("prompt", "text-lora", "feature", "lora", "adapter", "head", "text-lora+lora")


def build(words: Sequence[str]) -> Federation:
    """Return the federation that ``fedvlm run`` would start with ``words``.

    Raises:
        FedvlmError: anything that is wrong with them.
    """
    return build_run(resolve(parse(words)).jobs[0].cfg).federation


def words_of(
    trainer: str, backbone: str, clients: int, plain: bool, fp64: bool = False, peft: str = ""
) -> list[str]:
    """Return the main job's words for one side; ``peft``: what is trained, '' the method's own."""
    tower = BACKBONES.get(backbone) or ("--backbone", backbone, *BACKBONES["random-small"][2:])
    more = (*tower, "--opts", "MODEL.PREC", "fp64" if fp64 else "fp32")
    side = [*(["--peft", peft] if peft else []), *(["--plain"] if plain else [])]
    return [*COMMON, "--trainer", trainer, "--num-users", str(clients), *side, *more]


def trainable_sets(words: Sequence[str]) -> list[str]:
    """Return what ``--peft`` of the benchmark asks for; ``all`` is ``SETS``.

    Raises:
        ConfigError: a word that ``--peft`` of a run does not have.
    """
    sets = [name for word in words for name in (SETS if word == "all" else (word,))]
    for name in sets:
        expand(name)
    return list(dict.fromkeys(sets))


def run(
    trainers: Sequence[str], backbone: str, *, rounds: int = 2, repeats: int = 3,
    clients: int = 10, threads: int = 1, fp64: bool = False, peft: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Measurements:
    """Measure and return a record of plain JSON values.

    Args:
        trainers: names or ``file.py:Class``; none: all of the repository.
        backbone: ``tiny``, ``random-small``, or another one, with random weights.
        rounds: timed rounds, after one that warms up.
        repeats: pairs of timings, interleaved; the median counts.
        fp64: double precision, where both sides differ by rounding no more.
        peft: trainable sets (``trainable_sets``); none: the methods' own.

    Raises:
        ConfigError: numbers below 1; whatever the build refuses of a trainer that was named, unless
            several sets were.
    """
    for name, value in (("rounds", rounds), ("repeats", repeats), ("clients", clients),
                        ("threads", threads)):
        if value < 1:
            raise ConfigError(f"--{name} {value}: must be at least 1")
    before, sets = torch.get_num_threads(), trainable_sets(peft) or [""]
    names = list(trainers) or sorted(trainer_files())
    torch.set_num_threads(threads)
    methods: dict[str, Measurements] = {}
    try:
        for name, what in ((n, w) for n in names for w in sets):
            label = f"{name} {what}".strip()
            say(f"{label}, both sides")
            try:
                fast, plain = (
                    build(words_of(name, backbone, clients, side, fp64, what))
                    for side in (False, True)
                )
                if what and not isinstance(fast.trainer, PeftTrainer):
                    raise ConfigError("it brings its own trainable tensors: --peft is not read")
                methods[label] = compare(fast, plain, rounds, repeats)
            except ConfigError as mistake:
                if trainers and len(sets) == 1:
                    raise
                methods[label] = {"refused": str(mistake)}  # of all, one may not suit the setting
    finally:
        torch.set_num_threads(before)
    return {
        "setting": {"backbone": backbone, "rounds": rounds, "repeats": repeats, "clients": clients,
                    "threads": threads, "prec": "fp64" if fp64 else "fp32", "peft": sets,
                    "words": list(COMMON)},
        "load": {"after": machine.load(), "cores": machine.cores()}, "methods": methods,
    }


def compare(fast: Federation, plain: Federation, rounds: int, repeats: int) -> Measurements:
    """Return what a client-round costs on both sides, and how far their losses are apart."""
    first = [play(side, rounds)[0] for side in (fast, plain)]  # warms up, and is not timed
    pairs = [[play(side, rounds) for side in (fast, plain)] for _ in range(repeats)]
    out: Measurements = {}
    for i, name in enumerate(("fast", "plain")):
        spent = [pair[i][1] for pair in pairs]
        work = max(1, first[i]["client_rounds"])
        out[name] = {
            "cpu": median(s.cpu for s in spent) / work,
            "wall": median(s.wall for s in spent) / work,
            "memory": max(s.rss for s in spent),
        }
    ratios = [pair[1][1].cpu / max(pair[0][1].cpu, 1e-9) for pair in pairs]
    return out | {
        "ratio": median(ratios), "lowest": min(ratios), "highest": max(ratios),
        "bytes_per_round": first[0]["bytes"] / rounds,
        "loss_difference": difference(first[0]["losses"], first[1]["losses"]),
        "losses": len(first[0]["losses"]),
    }


def play(fed: Federation, rounds: int) -> tuple[Measurements, machine.Cost]:
    """Run the first rounds from the start; return what was sent and lost, and what it took.

    The memory is what the work added at its peak, not the whole process.
    """
    events: list[RoundFinished] = []
    fed.subscribers[:] = [lambda e: events.append(e) if isinstance(e, RoundFinished) else None]

    def work() -> None:
        state = fed.start()
        for round_ in range(1, rounds + 1):
            state = fed.round(state, round_)

    before = machine.settle()
    _, spent = measure(work)
    spent = replace(spent, rss=max(0, spent.rss - before))
    losses: Losses = {
        (e.round, client, name): value
        for e in events if e.updates is not None for client in e.updates.clients
        for name, value in e.updates.of(client).items() if "loss" in name
    }
    sent = sum(
        n for e in events for way in (e.bytes_up, e.bytes_down) for one in way.values()
        for n in one.values()
    )
    count = sum(len(e.updates or ()) for e in events)
    return {"losses": losses, "bytes": sent, "client_rounds": count}, spent


def difference(fast: Losses, plain: Losses) -> float | None:
    """Return the largest difference of a client's loss, relative to it or to 1; None without any.

    Losses that one side lacks count as infinitely far.
    """
    if fast.keys() != plain.keys():
        return float("inf")
    gaps = [abs(fast[k] - plain[k]) / max(abs(plain[k]), 1.0) for k in fast]
    return max(gaps, default=None)


def lines(record: Measurements) -> list[str]:
    """Return the report."""
    s = record["setting"]
    load, done = record["load"], {
        n: r for n, r in record["methods"].items() if "refused" not in r
    }
    rows = [_row(name, record) for name, record in done.items()]
    head = (
        f"methods on {s['backbone']}, {s['prec']}, built-in shapes, {s['clients']} clients, "
        f"{s['rounds']} rounds after a warm-up, median of {s['repeats']} interleaved pairs, "
        f"{s['threads']} thread(s), CPU; load average {load['after']:.1f} on {load['cores']} "
        "core(s)"
    )
    notes = [
        "CPU seconds per client-round (training and aggregation, without evaluation); bytes up and "
        "down per round; MiB that the rounds add at their peak",
        f"loss: largest difference of the two sides, relative; ! is above {FP32_LOSS:g} "
        "(--fp64 tells whether that is rounding)",
    ]
    if slow := [n for n, r in done.items() if r["ratio"] < 1]:
        notes.append(f"slower than its plain path: {', '.join(slow)}")
    refused = [f"{n}: not measured: {r['refused']}" for n, r in record["methods"].items()
               if "refused" in r]
    return [head, *table_lines(rows), *notes, *refused]


def _row(name: str, record: Mapping[str, Any]) -> dict[str, object]:
    gap = record["loss_difference"]
    mark = " !" if gap is not None and gap > FP32_LOSS else ""
    return {
        "trainer": name, "fast": f"{record['fast']['cpu']:.4f}",
        "plain": f"{record['plain']['cpu']:.4f}", "ratio": f"{record['ratio']:.1f}",
        "range": f"{record['lowest']:.1f}-{record['highest']:.1f}",
        "bytes": f"{record['bytes_per_round']:,.0f}",
        "fast MiB": f"{record['fast']['memory'] / 2**20:.1f}",
        "plain MiB": f"{record['plain']['memory'] / 2**20:.1f}",
        "loss": "-" if gap is None else f"{gap:.0e}{mark}",
    }
