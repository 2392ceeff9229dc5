"""Reads a folder of golden figures (shared/golden/README.md) and drives our FedTV along it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.federation.batches import Batch, Batcher, Step
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.optim import OptimSpec
from fedvlm.federation.plan import Plan
from fedvlm.federation.rounds import Federation
from fedvlm.federation.server import Roster
from fedvlm.federation.trainer import Trainer
from fedvlm.models.vlmodel import VLModel
from tests.federation.toys import Watched
from tests.models.openai_layout import from_openai

NAMES = {
    "prompt_learner.sigma": "text.sigma",
    "prompt_learner.B": "text.U",
    "prompt_learner.S": "text.S",
    "prompt_learner.A": "text.V",
    "glo_adapter.layer.0.weight": "image.shared_adapter.fc1.weight",
    "glo_adapter.layer.2.weight": "image.shared_adapter.fc2.weight",
    "loc_adapter.layer.0.weight": "image.personal_adapter.fc1.weight",
    "loc_adapter.layer.2.weight": "image.personal_adapter.fc2.weight",
    "visual_fusion.w_query.weight": "image.fusion.query.weight",
    "visual_fusion.w_query.bias": "image.fusion.query.bias",
    "visual_fusion.w_key.weight": "image.fusion.key.weight",
    "visual_fusion.w_key.bias": "image.fusion.key.bias",
}


@dataclass
class Golden:
    """Figures of one folder: ``meta`` is the JSON, ``arrays`` the npz."""

    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @classmethod
    def load(cls, folder: Path) -> Golden:
        meta = json.loads((folder / "fedtv.json").read_text())
        with np.load(folder / "fedtv.npz", allow_pickle=False) as stored:
            return cls(meta, dict(stored))

    def tensor(self, key: str) -> Tensor:
        return torch.from_numpy(np.asarray(self.arrays[key]))

    def tree(self, prefix: str) -> dict[str, Tensor]:
        """Return our names -> stored tensors below ``prefix``."""
        return {
            ours: self.tensor(f"{prefix}/{theirs}")
            for theirs, ours in NAMES.items() if f"{prefix}/{theirs}" in self.arrays
        }

    def clip(self) -> dict[str, Tensor]:
        """Return the tiny CLIP's state dict; unstored token rows are zero."""
        state = {k[5:]: self.tensor(k) for k in self.arrays if k.startswith("clip/")}
        for key in [k for k in self.arrays if k.startswith("clip_rows/")]:
            name = key.removeprefix("clip_rows/")
            rows, stored = self.tensor(key), state[name]
            full = torch.zeros(self.meta.get("vocab", 49408), stored.shape[1], dtype=stored.dtype)
            full[rows.long()] = stored
            state[name] = full
        return state

    @property
    def heads(self) -> int | None:
        return self.meta.get("heads")  # None: OpenAI's rule, width / 64


@dataclass
class StoredBatches:
    """Replays ``batch/<round>/<client>/<step>/{x,y}``; golden rounds count from 0."""

    golden: Golden

    def sizes(self, clients: Sequence[int]) -> list[int]:
        return [self.golden.meta["sizes"][c] for c in clients]

    def steps(
        self, clients: Sequence[int], round_: int, epochs: int | Sequence[int], per_step: int,
        tag: str, after: int = 0, limit: int = 0, most: Sequence[int] = (),
    ) -> Iterator[Step]:
        for s in range(self.golden.meta["steps"]):
            keys = [f"batch/{round_ - 1}/{c}/{s}" for c in clients]
            x, y = (
                torch.stack([self.golden.tensor(f"{key}/{part}") for key in keys]) for part in "xy"
            )
            batch = Batch({"pixels": x}, y.long(), torch.ones(y.shape, dtype=torch.float64))
            yield Step(len(clients), s + 1, (0,) * len(clients), y.numel(), (batch,))

    def lengths(self, clients: Sequence[int], per_step: int) -> list[int]:
        return [self.golden.meta["steps"]] * len(clients)

    def roster(self) -> Roster:
        sizes = np.array(self.golden.meta["sizes"])
        none = np.zeros_like(sizes)
        return Roster(sizes, none, none, np.zeros((len(sizes), 0), np.int64), none)

    def whole(self, clients: Sequence[int], part: str, fallback: str = "") -> Batch | None:
        raise NotImplementedError

    def draw(
        self, clients: Sequence[int], round_: int, tag: str, most: int
    ) -> Batch | None:
        raise NotImplementedError

    def subset(self, clients: Sequence[int], part: str, share: float) -> Batcher:
        raise NotImplementedError


def fedtv_config(golden: Golden, cls: type[Trainer], **own: Any) -> CfgNode:
    """Return a config whose FedTV node has the golden protocol's numbers."""
    meta, init = golden.meta, golden.tree("init")
    node = {key: option.default for key, option in cls.options.items()}
    node |= {
        "N_CTX": meta["n_ctx"], "RANK": meta["rank"], "TEMP": meta["temp"],
        "ORTHO_WEIGHT": meta["ortho_weight"], "SAA_TEMP": meta["saa_temperature"],
        "HIDDEN": init["image.fusion.query.bias"].shape[0],
        "NUM_PROMPT": init["text.sigma"].shape[0], **own,
    }
    return CfgNode({"TRAINER": {"FEDTV": node}})


def federation(
    golden: Golden, *, packed: bool, chunk: int, watched: type | None = None, **own: Any
) -> Federation:
    """Return FedTV on the golden CLIP, batches and initial tensors, all in float64.

    ``watched``: a class with hooks that look on and call ``super()``.
    """
    backbone = from_openai(
        golden.clip(), vision_heads=golden.heads, text_heads=golden.heads, dtype=torch.float64
    )
    model = VLModel(backbone, golden.meta["classnames"], packed=packed)
    cls = load_trainer("FedTV")
    bases = (cls,) if watched is None else (watched, cls)

    class Started(*bases):  # type: ignore[misc]
        def trainables(self, model: Any, generator: torch.Generator) -> dict[str, Tensor]:
            drawn = super().trainables(model, generator)
            stored = golden.tree("init")
            assert {n: v.shape for n, v in drawn.items()} == {n: v.shape for n, v in stored.items()}
            return stored

    meta = golden.meta
    spec = OptimSpec("sgd", meta["lr"], meta["momentum"], meta["weight_decay"])
    return Watched(
        Started(fedtv_config(golden, cls, **own)), model, StoredBatches(golden),
        Plan(meta["rounds"], meta["n_clients"], optim=spec), engine=LocalEngine(chunk),
    )
