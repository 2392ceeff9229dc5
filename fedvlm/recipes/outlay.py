"""What a recipe's runs will cost, by arithmetic on its configs: no image is read, nothing runs.

Operations of the towers are open_clip's own profile (images of 224 pixels, 77 tokens); a trained
tensor costs three passes, a frozen tower one. Texts are packed as they are in a run: one prefix and
context for all names (``models.towers.text_path``). A method that is no ``PeftTrainer`` is taken to
send its prompts through the text tower. Hours are by what this machine's matrix products were seen
to do (``speed_here``), on a GPU by a round number; they are said as a range (``OFF``). Of a network
of its own every step reads its images, small products take three times as long as the arithmetic
says (measured: 1.8 to 4.7 times), and the backbone still sees the test images for zero-shot. Sizes
of data sets are those of their downloads (``data.get.offers``), of weights those of
``models.load.weights``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedvlm.data.catalog import dataset_info
from fedvlm.data.get.offers import offer_of
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.module_trainer import ModuleTrainer
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.trainer import Trainer
from fedvlm.models.load.weights import GIGABYTES
from fedvlm.recipes.counts import SHAPES, counts_of, stand_in
from fedvlm.recipes.trial import Row, classes_of

IMAGE = {"ViT-B/16": 35.1e9, "ViT-B/32": 8.8e9, "ViT-L/14": 162e9, "RN50": 12.2e9}
TEXT = {"ViT-B/16": 6.0e9, "ViT-B/32": 6.0e9, "ViT-L/14": 13.3e9, "RN50": 6.0e9}
GPU = 2e13  # operations a second of one card
CONTEXT, NAME, FULL = 17, 3.5, 77  # tokens: before the names, of a name and its end, of a text
TRIES, WIDE, ROWS = 5, 768, 2048  # of ``speed_here``: products of a ViT-B's first MLP layer
PASSES = 3  # forward, and backward to tensors and to inputs
SLOW = 3.0  # a network's small products and what lies between them, beside one large product
TESTS, TOWER = 4, 2  # passes over test images: models (shared, own; first, last), zero-shot
READ, READERS = 0.002, 8  # seconds to read an image on one core; cores beside a GPU
OFF = 2.0  # times as long, or as short, as the arithmetic says
FEWEST = 0.1  # of what is printed as a number
SIDE, BYTES, COPIES = 224, 4, 2  # pixels; of a number; a client's personal tensors and its state


@dataclass(frozen=True)
class Outlay:
    """Operations of runs, the bytes that they keep, and the images that they read from disk."""

    flops: float
    bytes: float
    images: float = 0.0

    def __add__(self, other: Outlay) -> Outlay:
        """Return the sum."""
        return Outlay(self.flops + other.flops, self.bytes + other.bytes,
                      self.images + other.images)

    def words(self, speed: float) -> str:
        """In words.

        Args:
            speed: operations a second of this machine.
        """
        here, gpu = (_span(hours) for hours in (self.hours(speed), self.hours(GPU, READERS)))
        return (f"{here} hours here or {gpu} on a GPU, and {few(self.bytes / 1e9)} GB for clients' "
                "states and features")

    def hours(self, speed: float, readers: int = 1) -> float:
        """Return the hours at so many operations a second, with so many cores that read images."""
        return (self.flops / speed + self.images * READ / readers) / 3600


@dataclass(frozen=True)
class Files:
    """What runs read: each data set and backbone once.

    Attributes:
        images, weights: gigabytes, about, by name; of some sets none is known.
        unknown: names of those.
    """

    images: Mapping[str, float]
    weights: Mapping[str, float]
    unknown: tuple[str, ...] = ()

    def __or__(self, other: Files) -> Files:
        """Return both, what they share once."""
        return Files({**self.images, **other.images}, {**self.weights, **other.weights},
                     tuple(sorted({*self.unknown, *other.unknown})))

    @property
    def gigabytes(self) -> float:
        """Of images and weights together, as far as known."""
        return sum(self.images.values()) + sum(self.weights.values())

    def words(self) -> str:
        """In words; empty where nothing is read."""
        parts = [f"{few(sum(sizes.values()))} GB of {what}" for sizes, what in
                 ((self.images, "images"), (self.weights, "weights")) if sizes]
        if self.unknown:
            parts.append(f"images of unknown size ({', '.join(self.unknown)})")
        return " and ".join(parts)


def reads_of(rows: Iterable[Row]) -> Files:
    """Return what the runs of rows read, by the tables of data sets and of weights."""
    images: dict[str, float] = {}
    weights: dict[str, float] = {}
    unknown = set()
    for row in rows:
        if row.job is None:
            continue
        cfg = row.job.cfg
        info, tower = dataset_info(cfg.DATASET.NAME), cfg.MODEL.BACKBONE.NAME.replace("/", "-")
        size = offer_of(info.name, info.source).size if info else 0.0
        if size:
            images[info.name if info else ""] = size
        elif info is None or not info.builtin:
            unknown.add(info.name if info else row.dataset)
        if cfg.MODEL.BACKBONE.PRETRAINED and tower in GIGABYTES:
            weights[tower] = GIGABYTES[tower]
    return Files(images, weights, tuple(sorted(unknown)))


@cache
def speed_here() -> float:
    """Return the operations a second of this machine's float32 products: the best of five."""
    left, right = torch.ones(ROWS, WIDE), torch.ones(WIDE, 4 * WIDE)
    best = float("inf")
    for _ in range(TRIES):
        begun = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - begun)
    return 2.0 * ROWS * WIDE * 4 * WIDE / best


def worth(rows: Iterable[Row], confirmed: float) -> float:
    """Return how many published numbers an hour of a GPU confirms; 0 where nothing is known.

    Args:
        rows: runs that are made for them.
        confirmed: numbers that they can confirm.
    """
    outlay = outlay_of(rows)
    return 0.0 if outlay is None else confirmed / max(outlay.hours(GPU, READERS), 1e-6)


def outlay_of(rows: Iterable[Row]) -> Outlay | None:
    """Return what the runs of rows cost together; None where nothing is known of any."""
    found = outlays(rows)
    return sum(found, Outlay(0.0, 0.0)) if found else None


def outlays(rows: Iterable[Row]) -> list[Outlay]:
    """Return what the runs of each row cost, without rows of which nothing is known."""
    found = [(len(row.cells) or row.runs, one) for row in rows if row.job is not None
             for one in [_one(row)] if one is not None]
    return [Outlay(n * one.flops, n * one.bytes, n * one.images) for n, one in found]


def _one(row: Row) -> Outlay | None:
    """Return what one run of a row costs."""
    assert row.job is not None  # noqa: S101 (the caller asked)
    cfg = row.job.cfg
    info, name = dataset_info(cfg.DATASET.NAME), cfg.MODEL.BACKBONE.NAME
    if info is None or not info.train or not info.test or name not in SHAPES:
        return None
    classes, shots, fed = classes_of(row.job), int(cfg.DATASET.NUM_SHOTS), cfg.FED
    train = info.train if shots < 0 else min(shots * classes, info.train)
    seen = fed.ROUNDS * fed.FRAC * train * fed.LOCAL_EPOCHS
    batch = int(cfg.DATALOADER.TRAIN_X.BATCH_SIZE)
    steps = seen / batch
    kind = load_trainer(cfg.TRAINER.NAME)
    counts = counts_of(kind, cfg, classes)
    states = COPIES * BYTES * fed.CLIENTS * counts.trained
    if issubclass(kind, ModuleTrainer):
        flops = SLOW * _network(kind(cfg), name, classes) * (PASSES * seen + TESTS * info.test)
        tower = TOWER * IMAGE[name] * info.test
        return Outlay(flops + tower, states, seen + (TESTS + TOWER) * info.test)
    inside = issubclass(kind, PeftTrainer) and (cfg.PEFT.VISUAL in ("lora", "adapter"))
    views = int(cfg.INPUT.VIEWS)
    images = PASSES * seen if inside else seen if not views else views * train
    text = issubclass(kind, PeftTrainer) and cfg.PEFT.TEXT == "none"
    flops = IMAGE[name] * (images + info.test)
    if not text:
        tokens = (classes if cfg.PEFT.CSC else 1) * CONTEXT + classes * NAME
        sets = max(1, kind(cfg).prompt_sets(batch))
        flops += PASSES * steps * sets * tokens / FULL * TEXT[name]
    features = BYTES * SHAPES[name].embed * (images + info.test)
    return Outlay(flops, states + features, (views * train if views else seen) + info.test)


def _network(trainer: Trainer, backbone: str, classes: int) -> float:
    """Return the operations of one image; shapes alone are computed."""
    assert isinstance(trainer, ModuleTrainer)  # noqa: S101 (the caller asked)
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        module = trainer.build(stand_in(backbone, classes)).eval()
        params = dict(module.named_parameters())
        trainer.forward(module, params, {"pixels": torch.zeros(1, 3, SIDE, SIDE)})
    return float(counter.get_total_flops())


def _span(hours: float) -> str:
    """Return the range of an estimate, which real runs missed by up to ``OFF``."""
    low, high = few(hours / OFF), few(hours * OFF)
    if hours / OFF < FEWEST <= hours * OFF:
        return f"at most {high}"
    return low if low == high else f"{low} to {high}"


def few(value: float) -> str:
    """Return a number in few digits."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= FEWEST else "less than 0.1"  # noqa: PLR2004
