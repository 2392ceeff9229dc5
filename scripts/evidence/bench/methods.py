"""``bench methods``: every trainer beside its own plain path (``FED.PLAIN``), in one process.

Both sides are the main job's own build of the same config: the fast one with cached features,
packed prompts and stacked clients, the plain one with images through the tower in every batch,
full-length texts and clients one by one. The built-in shapes are the data. ``--peft`` measures
methods that train what they are given with other trainable sets; ``all`` with every one.
"""

from __future__ import annotations

import datetime
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from evidence.bench import machine
from evidence.bench.machine import Measurements
from evidence.bench.pairs import compare
from fedvlm.config.families import families
from fedvlm.core.errors import ConfigError
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.rounds import Federation
from fedvlm.job.build import build_run, prepare_run
from fedvlm.job.flags import parse, peft_keys
from fedvlm.job.inputs import Inputs, SharedInputs
from fedvlm.job.resolve import resolve
from fedvlm.models.adapt.peft import BODY, HEAD

BACKBONES = {
    "tiny": ("--backbone", "tiny"),
    "random-small": ("--backbone", "ViT-S-32-alt", "--opts", "MODEL.BACKBONE.PRETRAINED", "False"),
}
COMMON = ("--demo", "--device", "cpu", "--shots", "4")
OWN, EVERY = "own", "all"
SETS = ("prompt", "text-lora", "feature", "lora", "adapter", "head", "text-lora+lora")
# Of methods that need something on both sides, the image's and the text's or head's.
BOTH = ("prompt+feature", "prompt+lora", "prompt+adapter", "head+feature", "head+lora",
        "head+adapter", "text-lora+lora")
_SIDE = {"prompt": HEAD, "text-lora": HEAD, "head": HEAD, "feature": BODY, "lora": BODY,
         "adapter": BODY}
SPREAD = "fedavg"  # the method that --quick measures with every trainable set


@dataclass(frozen=True)
class Setting:
    """What is measured how.

    Attributes:
        backbone: ``tiny``, ``random-small``, or another one, with random weights.
        rounds: timed rounds from the start, after as many that warm up.
        repeats: pairs of timings, interleaved; the median of their ratios counts.
        epochs: local epochs of a round; 0: as configured, and so where a method has phases.
        fp64: double precision, where both sides differ by rounding no more.

    Raises:
        ConfigError: numbers below 1.
    """

    backbone: str = "tiny"
    rounds: int = 2
    repeats: int = 3
    clients: int = 10
    threads: int = 1
    epochs: int = 0
    fp64: bool = False

    def __post_init__(self) -> None:
        machine.refuse_below_one(rounds=self.rounds, repeats=self.repeats, clients=self.clients,
                                 threads=self.threads)

    def words(self, trainer: str, plain: bool, peft: str = "") -> list[str]:
        """Return the main job's words for one side; ``peft``: what is trained, '' its own."""
        tower = BACKBONES.get(self.backbone) or (
            "--backbone", self.backbone, *BACKBONES["random-small"][2:]
        )
        more = (*tower, "--opts", "MODEL.PREC", "fp64" if self.fp64 else "fp32")
        side = [*(["--peft", peft] if peft else []), *(["--plain"] if plain else [])]
        side += ["--local-epochs", str(self.epochs)] if self.epochs else []
        return [
            *COMMON, "--trainer", trainer, "--num-users", str(self.clients), *side, *more
        ]


QUICK = Setting(rounds=1, repeats=3, clients=4, epochs=1)


def build(words: Sequence[str], inputs: Inputs | None = None) -> Federation:
    """Return the federation that ``fedvlm run`` would start with ``words``.

    Raises:
        FedvlmError: anything that is wrong with them.
    """
    return build_run(resolve(parse(words)).jobs[0].cfg, inputs=inputs).federation


def trainable_sets(words: Sequence[str]) -> list[str]:
    """Return what ``--peft`` of the benchmark asks for, '' for the methods' own.

    ``own`` are those; ``all`` is every one that a method takes (``plan_rows``).

    Raises:
        ConfigError: a word that ``--peft`` of a run does not have.
    """
    sets = ["" if word == OWN else word for word in words or (OWN,)]
    for name in sets:
        if name not in ("", EVERY):
            peft_keys(name)
    return list(dict.fromkeys(sets))


def plan_rows(
    trainers: Sequence[str], peft: Sequence[str], quick: bool
) -> Iterator[tuple[str, str]]:
    """Yield (trainer, trainable set) of every row, '' for the trainer's own set.

    ``all`` is those of ``SETS`` (``BOTH``) with the sides that the method needs. A method that
    brings what it trains has one row, if its own set is asked for; where it is named beside other
    sets, these are refused later.

    Raises:
        ConfigError: an unknown trainer or set.
    """
    sets = trainable_sets(peft)
    for name in list(trainers) or sorted(trainer_files()):
        kind = load_trainer(name)
        if not issubclass(kind, PeftTrainer):
            asked = [""] if {"", EVERY} & set(sets) else (sets if trainers else [])
        else:
            every = [s for s in (BOTH if len(kind.needs) > 1 else SETS)
                     if set(kind.needs) <= {_SIDE[word] for word in s.split("+")}]
            more = (EVERY,) if quick and name == SPREAD else ()
            asked = [s for word in (*sets, *more) for s in (every if word == EVERY else (word,))]
            asked = list(dict.fromkeys(asked))
        yield from ((name, what) for what in asked)


def run(
    trainers: Sequence[str], setting: Setting, *, peft: Sequence[str] = (),
    family: Sequence[str] = (), quick: bool = False, say: Callable[[str], None] = lambda _: None,
) -> Measurements:
    """Measure and return a record of plain JSON values.

    Args:
        trainers: names or ``file.py:Class``; none: all of the repository.
        peft: trainable sets (``trainable_sets``); none: the methods' own.
        family: only rows that train something of one of these (``families.ORDER``); none: all.
        quick: besides, one method with every set, so that each is measured once.

    Raises:
        ConfigError: nothing to measure; whatever the build refuses of a single row.
    """
    rows = list(plan_rows(trainers, peft, quick))
    inputs, start = SharedInputs(), machine.load()
    methods: dict[str, Measurements] = {}
    highest = start
    with machine.threads(setting.threads):
        for number, (name, what) in enumerate(rows, start=1):
            try:
                row = _row(
                    name, what, setting, family, inputs, partial(_tell, say, number, len(rows))
                )
            except ConfigError as mistake:
                if len(rows) == 1:
                    raise
                # of all, one may not suit the setting
                row = {"trainer": load_trainer(name).name, "peft": what, "refused": str(mistake)}
            if row:
                methods[f"{row['trainer']} {what}".strip()] = row
            highest = max(highest, machine.load())
    if not methods:
        raise ConfigError(f"no method trains {' or '.join(family)} with this --peft; drop --family")
    return {
        "setting": asdict(setting) | {
            "prec": "fp64" if setting.fp64 else "fp32", "peft": list(peft) or [OWN],
            "family": list(family), "words": list(COMMON),
        },
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": machine.cpu_facts(), "torch": torch.__version__,
        "load": {"before": start, "highest": highest, "after": machine.load(),
                 "cores": machine.cores()},
        "methods": methods,
    }


def _tell(say: Callable[[str], None], number: int, count: int, label: str) -> None:
    say(f"{number} of {count}: {label}, both sides")


def _row(
    trainer: str, what: str, setting: Setting, family: Sequence[str], inputs: Inputs,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Return a row's record; empty where it trains nothing of ``family``.

    Raises:
        ConfigError: what the build refuses; a trainable set for a method that brings its own.
    """
    if what and not issubclass(load_trainer(trainer), PeftTrainer):
        raise ConfigError("it defines its own trainable tensors: --peft is not read")
    if load_trainer(trainer).phases:  # counted in epochs, of which one is too few
        setting = replace(setting, epochs=0)
    if family:
        cfg = resolve(parse(setting.words(trainer, False, what))).jobs[0].cfg
        if not set(family) & set(families(prepare_run(cfg, inputs=inputs).start.p0)):
            return {}
    fast, plain = (build(setting.words(trainer, side, what), inputs) for side in (False, True))
    label = fast.trainer.name or trainer
    say(f"{label} {what}".strip())
    frozen = gc.get_freeze_count() > 0  # by the caller, who has a reason: left as it is
    if not frozen:
        gc.collect()
        gc.freeze()  # as the main job does: the collector need not walk what is built
    try:
        measured = compare(fast, plain, setting.rounds, setting.repeats)
    finally:
        if not frozen:
            gc.unfreeze()
    return {"trainer": label, "peft": what, "families": list(families(fast.p0)), **measured}
