"""One benchmark case: the same weights, images, batches and initial tensors for both sides."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import open_clip
import torch
from torch import Tensor
from yacs.config import CfgNode

from evidence.bench.flops import Towers
from evidence.bench.machine import Cost, measure
from evidence.bench.reference import ReferenceClip, ReferenceFedTV, literal_ids
from fedvlm.core import rng
from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import Tree
from fedvlm.evaluation.scores import OtherTest
from fedvlm.federation.batches import Batch, IndexSplit, SplitBatcher
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.engine import LocalEngine, RoundWork
from fedvlm.federation.optim import OptimSpec
from fedvlm.federation.plan import Plan
from fedvlm.federation.rounds import Federation
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.encode import cached_features
from fedvlm.models.features.sources import FeatureSource, PixelSource
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.load.openclip import build_model, finish
from fedvlm.models.vlmodel import VLModel

SGD = OptimSpec("sgd", 0.005, 0.9, 5e-4)
SEED = 7
TINY = "random-tiny"
TINY_ARCH: dict[str, Any] = {
    "embed_dim": 32, "quick_gelu": True,
    "vision_cfg": {"image_size": 16, "patch_size": 8, "width": 64, "layers": 2, "head_width": 32},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 3},
}

# Ordinary plant names, no data set's list, but of the usual token lengths: with CLIP's tokens the
# first 50 pack into about 250 tokens and the first 102 into about 480, as the class names of
# Flowers-102 do.
PLANTS = (
    "creeping red clover", "early garden pea", "mountain ash berry", "long sweet pepper",
    "common daisy", "yellow horned poppy", "giant fennel", "blue meadow sage", "wild dog rose",
    "yellow plum tomato", "early snow crocus", "swamp white oak", "creeping thyme",
    "french lavender", "field mustard", "river birch", "golden samphire", "climbing ivy",
    "purple loosestrife", "water mint", "red sugar beet", "stone pine", "sweet corn",
    "spotted orchid", "black nightshade", "common heather", "bell pepper", "brewer's hops",
    "wild crab apple", "long spring onion", "korean silver fir", "tree of heaven",
    "dwarf arctic willow", "reindeer moss", "oxeye daisy", "blue sea holly",
    "hart's tongue fern", "hairy bittercress", "lemon balm", "bog cotton grass", "winter wheat",
    "bird of paradise bush", "prickly pear cactus", "marsh marigold", "tulip tree",
    "pineapple weed", "horse chestnut", "rosemary", "woolly thistle", "lamb's ear",
    "giant orange pumpkin", "wood anemone", "twisted hazel", "winged spindle", "false acacia",
    "stinging nettle", "cow parsley", "garden rhubarb", "scarlet runner bean",
    "wild red ginger", "red maple", "black pine", "cherry laurel", "common reed", "sea kale",
    "wild garlic", "black elder", "white clover", "broad bean", "sweet potato", "water spinach",
    "red cabbage", "bay-leaved willow", "wild teasel", "meadow rue", "lady fern", "ground ivy",
    "butter bean", "manna ash tree", "cut-leaved rowan", "coconut palm", "date palm",
    "weeping fig tree", "sour cherry", "white lilac", "yellow iris", "blue flax",
    "hemp agrimony", "sugar cane", "false dill", "water parsnip", "wild celery",
    "globe artichoke", "green asparagus", "wall barley", "wild oat", "buckwheat", "soya bean",
    "perennial peanut", "black chickpea", "red lentil", "creeping juniper",
)
WORDS = ("pale", "dark", "early", "late", "small", "tall", "striped", "winter", "summer", "hardy")


def class_names(count: int) -> list[str]:
    """Return ``count`` different names; beyond the list, with one or two words before them."""
    heads = ["", *(f"{a} " for a in WORDS), *(f"{a} {b} " for a in WORDS for b in WORDS if a != b)]
    names = (f"{head}{plant}" for head in heads for plant in PLANTS)
    out = list(dict.fromkeys(names))
    out += [f"plant number {i}" for i in range(count - len(out))]
    return out[:count]


@dataclass
class Samples:
    """Random images ``[n, 3, S, S]`` with random labels; every client holds the same ones."""

    pixels: Tensor
    labels: Tensor
    train: int

    @property
    def split(self) -> IndexSplit:
        """The indices of any client."""
        every = np.arange(len(self.labels))
        return IndexSplit(every[: self.train], every[:0], every[self.train :])


@dataclass
class Shared:
    """What ``evaluation.Evaluator`` reads of the data: no unseen classes."""

    clients: Sequence[IndexSplit]
    labels: np.ndarray
    global_test: np.ndarray
    new_test: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    new_classnames: Sequence[str] = ()
    others: Sequence[OtherTest] = ()


def load_towers(name: str, dtype: torch.dtype, *, plain: bool, seed: int = SEED) -> Backbone:
    """Return a backbone with random weights; equal seeds give equal weights."""
    if name != TINY:
        return load_backbone(name, dtype=dtype, allow_random=True, seed=seed, plain=plain)
    model, preprocess = build_model(TINY_ARCH, seed)
    tokenizer = open_clip.SimpleTokenizer(context_length=TINY_ARCH["text_cfg"]["context_length"])
    return finish(model, TINY_ARCH, preprocess, tokenizer, name, "", dtype=dtype, plain=plain)


class Case:
    """Both sides, ready to be timed.

    Args:
        backbone: CoOp's name, or ``TINY``.
        classes, batch: of a training step.
        train, test: images per client.
        dtype: float32, or float64 for the equality tests.

    Raises:
        ConfigError: a backbone that the reference recipe does not know.
        FedvlmError: the two sides would not stand on the same weights.
    """

    def __init__(
        self, backbone: str, classes: int, batch: int, train: int, test: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.plain = load_towers(backbone, dtype, plain=True)
        self.clip = ReferenceClip(self.plain)
        self.fast = load_towers(backbone, dtype, plain=False)
        if self.plain.digest != self.fast.digest:
            raise FedvlmError("bench: the two sides were not given the same weights")
        self.names, self.batch, self.dtype = class_names(classes), batch, dtype
        self.model = VLModel(self.fast, self.names)
        self.cfg, self.kind = fedtv()
        self.start = self._start()
        self.samples = self._images(train, test)
        self.features: Tensor | None = None
        self.fill = Cost(0.0, 0.0, 0)

    def _start(self) -> dict[str, Tensor]:
        """Initial tensors, away from orthonormal factors: their gradient is rounding noise."""
        draw = rng.stream(SEED, "init")
        start: dict[str, Tensor] = self.kind(self.cfg).trainables(self.model, draw)
        noise = rng.stream(SEED, "bench-start")
        for name in ("text.U", "text.V"):
            start[name] = 0.9 * start[name] + 0.05 * torch.randn(start[name].shape, generator=noise)
        return {n: v.to(self.dtype) for n, v in start.items()}

    def _images(self, train: int, test: int) -> Samples:
        size, draw = self.fast.image_size, rng.stream(SEED, "bench-images")
        pixels = torch.randn(train + test, 3, size, size, generator=draw).to(self.dtype)
        labels = torch.randint(len(self.names), (train + test,), generator=draw)
        return Samples(pixels, labels, train)

    def encode(self) -> Cost:
        """Fill a cold feature cache with all images, as a run does, and return what it took."""
        pixels = self.samples.pixels
        with tempfile.TemporaryDirectory() as folder:
            features, self.fill = measure(lambda: cached_features(
                self.fast, [str(i) for i in range(len(pixels))], lambda i: pixels[i], view=-1,
                transform_digest="bench", cache_dir=Path(folder),
            ))
        self.features = features
        return self.fill

    # ---- ours --------------------------------------------------------------------------------
    def federation(self, clients: int, chunk: int, epochs: int, bf16: bool = False) -> Federation:
        """Return our side: the method, the engine and the packed model on cached features."""
        if self.features is None:
            self.encode()
        features = cast(Tensor, self.features)
        model = VLModel(self.fast, self.names, bf16_text=True) if bf16 else self.model
        source = FeatureSource.of(
            features[None], torch.arange(len(features)), self.samples.labels
        )
        batcher = SplitBatcher(
            source, [self.samples.split] * clients, self.batch, SEED, 1, epochs, model.device,
            model.dtype,
        )
        plan = Plan(1, clients, epochs=epochs, seed=SEED, optim=SGD)
        trainer = recording_trainer(self.kind, self.cfg, self.start)
        return Federation(trainer, model, batcher, plan, engine=LocalEngine(chunk))

    # ---- reference ---------------------------------------------------------------------------
    def reference(self) -> ReferenceFedTV:
        """Return the reference recipe at the same initial tensors."""
        n_ctx = int(self.start["text.sigma"].shape[1])
        ids = literal_ids(self.plain, self.names, n_ctx)
        cfg = self.cfg.TRAINER.FEDTV
        return ReferenceFedTV(self.clip, ids, self.start, cfg.TEMP, cfg.ORTHO_WEIGHT)

    def batches(self, epochs: int, client: int = 0) -> list[tuple[Tensor, Tensor]]:
        """Return the (pixels, labels) that our side gives ``client`` in round 1, in order."""
        pixels = self.samples.pixels
        twin = SplitBatcher(
            PixelSource(lambda i, _view: pixels[i], self.samples.labels),
            [self.samples.split] * (client + 1), self.batch, SEED, 1, epochs,
            torch.device("cpu"), self.dtype,
        )
        steps = twin.steps([client], 1, epochs, 1, "w")
        return [(s.batches[0].x["pixels"][0], s.batches[0].y[0]) for s in steps]

    def test_batches(self, size: int) -> list[Tensor]:
        """Return the test images in the reference's batches."""
        return list(self.samples.pixels[self.samples.train :].split(size))

    # ---- formulas ----------------------------------------------------------------------------
    @property
    def towers(self) -> Towers:
        """Return the widths and depths that the FLOP formulas need."""
        visual, text = self.clip.visual, self.clip.transformer
        grid = round((len(visual.positional_embedding) - 1) ** 0.5)
        return Towers(
            self.fast.text_width, len(text.resblocks), self.fast.context_length,
            self.fast.embed_dim, visual.conv1.out_channels, len(visual.transformer.resblocks), grid,
            self.fast.image_size // grid,
        )

    @property
    def lengths(self) -> list[int]:
        """Return each class's own tokens: name, full stop, end of text."""
        ids = self.fast.tokenize([f"{n}." for n in self.names])
        return [int(n) for n in self.fast.token_ends(ids)]


def fedtv() -> tuple[CfgNode, Any]:
    """Return (config with FedTV's defaults, FedTV's class)."""
    kind = load_trainer("FedTV")
    node = CfgNode({key: option.default for key, option in kind.options.items()})
    return CfgNode({"TRAINER": CfgNode({"FEDTV": node})}), kind


def recording_trainer(kind: Any, cfg: CfgNode, start: dict[str, Tensor]) -> Any:
    """Return the trainer with given initial tensors; it keeps each step's losses in ``history``."""

    class Recorded(kind):  # type: ignore[misc]
        """The method itself; only its start is given and its losses are kept."""

        history: list[Tensor] = []  # noqa: RUF012

        def trainables(self, model: Any, generator: torch.Generator) -> dict[str, Tensor]:
            """Return the given tensors."""
            return dict(start)

        def loss(self, model: Any, p: Any, b: Batch) -> Any:
            """Compute the method's loss and keep it."""
            value, parts = super().loss(model, p, b)
            self.history.append(value.detach())
            return value, parts

    trainer = Recorded(cfg)
    trainer.history = []
    return trainer


def trained(fed: Federation, work: RoundWork, client: int) -> Tree:
    """Return a client's model after its local round: what it keeps, and what it sent."""
    sent = next(p for p in work.uploads if client in p.clients).arrive().messages()[client]
    return fed.clients.read([client], work.versions)[client]["w"] | sent


def local_round(fed: Federation) -> RoundWork:
    """Let all clients do their local round from the start."""
    state = fed.start()
    ids = range(fed.plan.clients)
    return fed.engine.run(
        fed.trainer, lambda ids: fed.context(ids, 1), fed.downloads(state, 1, ids), fed.clients,
        dict.fromkeys(ids, 0),
    )
