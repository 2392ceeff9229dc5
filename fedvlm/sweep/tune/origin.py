"""What a run is made of beside its config: images, towers, the method's own source.

A tuning that is gone on with compares it, so that scores of other images, weights or code are not
taken for those of today. The rest of fedvlm's code is no part of it.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.data.images import ImageLoader
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.build import pick_device, views_of
from fedvlm.job.identity import images_digest
from fedvlm.job.inputs import SharedInputs, backbone_key, data_key

WORDS = {"data": "lists or labels", "images": "images", "backbone": "weights of the backbone",
         "trainer": "source of the method"}
Origin = dict[str, str]


def read_origin(identity: Mapping[str, Any], trainer: str) -> Origin:
    """Return digests by a key of ``WORDS`` of a run whose identity is there."""
    return {key: str(identity[key]) for key in WORDS if key != "trainer"} | {
        "trainer": source_digest(trainer)}


def source_digest(trainer: str) -> str:
    """Return the SHA-256 of the files that a method is written in, their docstrings apart.

    A card may be put in other words without another method coming of it.
    """
    cls = load_trainer(trainer)
    files = getattr(cls, "sources", None) or [Path(inspect.getfile(cls))]
    digest = hashlib.sha256()
    for path in files:
        digest.update(_without_docstring(Path(path).read_text(encoding="utf-8")).encode())
    return digest.hexdigest()


def _without_docstring(text: str) -> str:
    first = ast.parse(text).body[:1]
    if not (first and isinstance(first[0], ast.Expr) and isinstance(first[0].value, ast.Constant)
            and isinstance(first[0].value.value, str)):
        return text
    lines = text.splitlines()
    return "\n".join(lines[:first[0].lineno - 1] + lines[first[0].end_lineno or 0:])


class Origins:
    """What runs would be made of today, each thing read once."""

    def __init__(self) -> None:
        self._inputs = SharedInputs()
        self._data: dict[str, tuple[str, str]] = {}
        self._towers: dict[str, tuple[str, Any]] = {}
        self._sources: dict[str, str] = {}

    def of(self, cfg: CfgNode) -> Origin:
        """Return the digests of a config's run.

        Raises:
            FedvlmError: its images or weights cannot be read.
        """
        device = pick_device(cfg.DEVICE)
        key = backbone_key(cfg, device)
        if key not in self._towers:
            backbone = self._inputs.backbone(cfg, device)
            self._towers[key] = backbone.digest, backbone.transform_spec
        digest, transform = self._towers[key]
        place = data_key(cfg) + transform.digest
        if place not in self._data:
            data = self._inputs.data(cfg, None)
            loader = ImageLoader(
                data.samples, transform, views_of(cfg), int(cfg.DATA_SEED),
                crop_scale=tuple(cfg.INPUT.RRCROP_SCALE), records=data.records,
            )
            self._data[place] = data.digest, images_digest(loader, len(data.samples))
        name = str(cfg.TRAINER.NAME)
        if name not in self._sources:
            self._sources[name] = source_digest(name)
        lists, images = self._data[place]
        return {"data": lists, "images": images, "backbone": digest, "trainer": self._sources[name]}
