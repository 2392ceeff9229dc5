"""Our side of a comparison: one tiny random CLIP in float64, three unequal clients, one method.

Weights, images and starting points are drawn by ``numpy.random.RandomState``, whose numbers are
the same in every version, so that the figures in ``tests/golden`` hold on any machine.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.config.option import declare
from fedvlm.core.rng import stream
from fedvlm.core.trees import Tree
from fedvlm.federation.batches import Batch, IndexSplit, SplitBatcher
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.groups import SHARED
from fedvlm.federation.optim import OptimSpec
from fedvlm.federation.plan import Plan
from fedvlm.federation.rounds import Federation
from fedvlm.federation.trainer import Trainer
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.openclip import build_model, finish
from fedvlm.models.vlmodel import VLModel

DTYPE = torch.float64
NAMES = ("daisy", "sword_lily", "annual crop land", "pizza", "school bus")
CONTEXT, VOCABULARY, PATCH, HEAD = 77, 49408, 8, 64  # as the authors' copies of CLIP have them
PROBED = 2  # clients whose loss and gradients are compared
TESTED = 4  # images of each client whose logits are compared


@dataclass(frozen=True)
class Case:
    """One comparison: the method's options, the towers' sizes and the run of a few rounds.

    Attributes:
        method: name in ``--trainer``.
        options: ``TRAINER.<METHOD>.<option>`` -> value.
        keys: further config keys.
        width, vision_width, embed, layers: of the CLIP towers; a head has 64 numbers.
        image: edge of an image in pixels.
        rounds, epochs: of the run; 0 rounds: loss, gradients and logits alone. Each local step
            takes all images of its client.
        optimiser, rate, momentum, decay: of the local training.
        details: further fields of ``OptimSpec``.
        sizes: training images per client.
        held: validation images per client; none: no client has one.
        names: class names; templates: for the hand-written prompts.
        spread: standard deviation of what is added to the start, per client.
        scales: standard deviation of each tensor of the start, as stored with the figures; without
            it that of the method's own start, whose last bits depend on the machine.
        loss: whether loss and gradients are compared (not for methods without either).
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    width: int = 128
    vision_width: int = 128
    embed: int = 128
    layers: int = 2
    image: int = 32
    rounds: int = 3
    epochs: int = 2
    optimiser: str = "sgd"
    rate: float = 0.05
    momentum: float = 0.9
    decay: float = 5e-4
    details: Mapping[str, Any] = field(default_factory=dict)
    sizes: Sequence[int] = (6, 3, 2)
    held: Sequence[int] = ()
    names: Sequence[str] = NAMES
    templates: Sequence[str] = ("a photo of a {}.",)
    spread: float = 0.05
    scales: Mapping[str, float] = field(default_factory=dict)
    loss: bool = True

    @property
    def architecture(self) -> dict[str, Any]:
        """The towers as open_clip describes them."""
        return {
            "embed_dim": self.embed, "quick_gelu": True,
            "vision_cfg": {"image_size": self.image, "layers": self.layers, "head_width": HEAD,
                           "width": self.vision_width, "patch_size": PATCH},
            "text_cfg": {"context_length": CONTEXT, "vocab_size": VOCABULARY, "width": self.width,
                         "heads": self.width // HEAD, "layers": self.layers},
        }


def draw(name: str, *shape: int) -> Tensor:
    """Return standard normal numbers that depend on name and shape only."""
    numbers = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    return torch.from_numpy(np.asarray(numbers))


@cache
def _backbone(width: int, vision: int, embed: int, layers: int, image: int
              ) -> tuple[Backbone, dict[str, Tensor]]:
    """Return our backbone and its weights under open_clip's names, which are OpenAI's."""
    case = Case("", width=width, vision_width=vision, embed=embed, layers=layers, image=image)
    model, preprocess = build_model(copy.deepcopy(case.architecture), 0)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name == "logit_scale":
                tensor.fill_(2.5)
                continue
            noise = draw(name, *tensor.shape)
            norm = tensor.ndim == 1 and name.endswith("weight")
            fan = tensor.shape[-1] if tensor.ndim == 2 and "embedding" not in name else 64
            tensor.copy_(1 + 0.05 * noise if norm else noise * (1 if tensor.ndim > 1 else 0.4)
                         / fan**0.5)
    weights = {k: v.detach().to(DTYPE).clone() for k, v in model.state_dict().items()
               if "mask" not in k}
    return finish(model, copy.deepcopy(case.architecture), preprocess, tokenizer(), "toy", "",
                  dtype=DTYPE), weights


@cache
def tokenizer() -> SimpleTokenizer:
    """Return CLIP's tokenizer."""
    return SimpleTokenizer(context_length=CONTEXT)


class World:
    """A case's model, clients and starting points; ``values`` computes our numbers.

    Attributes:
        model: our towers with the class list; ``plain``: texts one by one, images from pixels.
        weights: the towers' tensors under OpenAI's names, float64.
        trainer: our method.
        start: its untrained tensors; drawn here where the method draws them, with standard
            deviation ``scales``.
        images, labels: of all clients ``[N, 3, H, W]``, ``[N]``; ``rows``: whose are which,
            ``val``: whose validation images.
        tests: images of which logits are compared ``[TESTED, 3, H, W]``.
        shares: p_k, the clients' shares of all training images.
    """

    def __init__(self, case: Case, plain: bool = False) -> None:
        self.case, self.plain = case, plain
        self.backbone, self.weights = _backbone(
            case.width, case.vision_width, case.embed, case.layers, case.image)
        self.names = [name.replace("_", " ") for name in case.names]
        self.model = VLModel(
            self.backbone, self.names, templates=tuple(case.templates), packed=not plain
        )
        self.trainer = build_trainer(case)
        total, edge = sum(case.sizes) + sum(case.held), case.image
        self.images = draw("images", total, 3, edge, edge)
        self.tests = draw("tests", TESTED, 3, edge, edge)
        self.labels = torch.arange(total) % len(self.names)
        ends = np.cumsum([0, *case.sizes])
        self.rows = [np.arange(a, b) for a, b in zip(ends, ends[1:], strict=False)]
        self.shares = [n / sum(case.sizes) for n in case.sizes]
        ends = sum(case.sizes) + np.cumsum([0, *(case.held or [0] * len(case.sizes))])
        self.val = [np.arange(a, b) for a, b in zip(ends, ends[1:], strict=False)]
        self._streams: dict[str, Tensor] | None = None
        self.scales: dict[str, float] = {}
        self.start = self._start()

    def _start(self) -> Tree:
        one, other = (self.trainer.trainables(self.model, stream(s, "init")) for s in (1, 2))
        tree = {}
        for name, value in one.items():
            drawn = not torch.equal(value, other[name])
            if drawn:
                self.scales[name] = self.case.scales.get(name, float(value.std()))
                tree[name] = self.scales[name] * draw(f"start {name}", *value.shape)
            else:
                tree[name] = value.to(DTYPE)
        return tree

    def params(self) -> Tree:
        """Return the tensors ``[K, ...]`` at which losses, gradients and logits are compared."""
        return {
            name: value + self.case.spread * draw(f"params {name}", PROBED, *value.shape)
            for name, value in self.start.items()
        }

    def stream(self, images: Tensor) -> dict[str, Tensor]:
        """Return what the method reads of images ``[..., 3, H, W]``: pixels or what is cached."""
        found: dict[str, Tensor] = {}
        flat = images.flatten(0, -4)
        for name in ("pixels",) if self.plain else self.trainer.streams(self.model):
            if name == "pixels":
                found[name] = images
                continue
            with torch.no_grad():
                value = (self.backbone.encode_image(flat) if name == "features"
                         else self.model.vision.compute(flat, name))
            found[name] = value.unflatten(0, images.shape[:-3])
        return found

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        """Return the streams of training images, as ``SampleSource``; they are made once."""
        if self._streams is None:
            self._streams = self.stream(self.images)
        return {name: value[indices] for name, value in self._streams.items()}

    def batch(self) -> Batch:
        """Return the same number of images for each probed client."""
        n = min(self.case.sizes[:PROBED])
        at = torch.stack([torch.from_numpy(rows[:n]) for rows in self.rows[:PROBED]])
        return Batch(self.stream(self.images[at]), self.labels[at], torch.ones(PROBED, n,
                     dtype=DTYPE))

    def values(self) -> dict[str, Tensor]:
        """Return our numbers by name: loss and gradients, tensors and logits after the rounds."""
        found = self.gradients() if self.case.loss else {}
        return found | (self.run() if self.case.rounds else {})

    def gradients(self) -> dict[str, Tensor]:
        """Return ``loss [K]`` and ``grad <tensor>`` at ``params``."""
        leaves = {n: v.clone().requires_grad_() for n, v in self.params().items()}
        out = self.trainer.loss(self.model, leaves, self.batch())
        loss = out[0] if isinstance(out, tuple) else out
        grads = torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True)
        found = {"loss": loss.detach()}
        found |= {f"grad {n}": g for n, g in zip(leaves, grads, strict=True) if g is not None}
        return found

    def run(self) -> dict[str, Tensor]:
        """Return ``shared <tensor>``, ``client<k> <tensor>`` and ``logits [K, TESTED, C]``.

        After the rounds, of all clients; a client's tensor is left out where it is the shared one.
        """
        c, none = self.case, np.zeros(0, np.int64)
        splits = [IndexSplit(*own, none) for own in zip(self.rows, self.val, strict=True)]
        batcher = SplitBatcher(
            self, splits, max(c.sizes), 1, 1, c.epochs, torch.device("cpu"), DTYPE
        )
        spec = OptimSpec(c.optimiser, c.rate, c.momentum, c.decay, **c.details)
        plan = Plan(c.rounds, len(c.sizes), epochs=c.epochs, optim=spec)
        trainer = build_trainer(c)
        setattr(trainer, "trainables", lambda model, generator: dict(self.start))  # noqa: B010
        federation = Federation(trainer, self.model, batcher, plan, engine=LocalEngine(8))
        state = federation.run()
        shared = {n: v[0] for n, v in federation.shared(state).items()
                  if n in federation.groups.names(SHARED)}
        found = {f"shared {n}": v for n, v in shared.items()}
        logits: dict[int, Tensor] = {}  # they come by size
        for clients, models in federation.personal(state, range(len(c.sizes))):
            with torch.no_grad():
                x = self.stream(self.tests.expand(len(clients), *self.tests.shape))
                logits |= zip(clients, trainer.predict(self.model, models, x), strict=True)
            for name, value in models.items():
                for client, own in zip(clients, value, strict=True):
                    if name not in shared or not torch.equal(own, shared[name]):
                        found[f"client{client} {name}"] = own
        found["logits"] = torch.stack([logits[k] for k in range(len(c.sizes))])
        return {name: value.detach().clone() for name, value in found.items()}


def build_trainer(case: Case) -> Trainer:
    """Return our method with the case's options."""
    cls = load_trainer(case.method)
    node = f"TRAINER.{cls.name.upper()}"
    schema = declare(default_schema(), node, cls.options)
    flags = {"FED.CLIENTS": str(len(case.sizes))} | {k: str(v) for k, v in case.keys.items()}
    flags |= {f"{node}.{key}": str(value) for key, value in case.options.items()}
    return cls(build_config(None, None, flags, [], schema)[0])
