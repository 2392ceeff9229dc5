"""Runs whose images are in feature packs: what is served, what is refused, what identity says.

A pack has image features of the test view, and of training views where it was made with some. A run
that needs no more gives the bits of the run on the images: the features are those that the store
would hold. Everything else is refused before the first round, with what is lacking.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError
from fedvlm.data.datum import Datum
from fedvlm.data.images import ImageLoader
from fedvlm.federation.trainer import Trainer
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.encode import batch_size
from fedvlm.models.vlmodel import VLModel

if TYPE_CHECKING:
    from fedvlm.data.packs.pack import Pack

DIGITS = 12  # of a digest in a message
FEATURES = "features"


def packs_of(samples: Iterable[Datum]) -> list[Pack]:
    """Return the packs that hold some of the images, in order of appearance."""
    return list({id(d.packed.pack): d.packed.pack for d in samples if d.packed}.values())


def check_packs(
    trainer: Trainer, model: VLModel, loader: ImageLoader, plain: bool = False
) -> None:
    """Refuse a run that wants of its packs what they do not have.

    Args:
        plain: every image goes through the tower (``FED.PLAIN``).

    Raises:
        ConfigError: the plain path, a stream other than features, another backbone or transform,
            more training views, or other numbers than the run computes in.
    """
    packs = packs_of(loader.samples)
    if not packs:
        return
    where = packs[0].path
    if plain:
        raise ConfigError(
            f"--plain needs images at every step, but {where} is a feature pack without "
            "images; drop --plain, or give the images with --root"
        )
    lacking = [stream for stream in trainer.streams(model) if stream != FEATURES]
    if lacking:
        raise ConfigError(
            f"{trainer.name} with these settings needs {' and '.join(map(_words, lacking))}, but "
            f"{where} is a feature pack with image features only; give the images with --root, "
            "or choose a method or --peft that trains nothing inside the image tower"
        )
    for pack in packs:
        _check_backbone(pack, model.backbone)
        _check_views(pack, loader)


def _words(stream: str) -> str:
    """Return what a stream is called in a sentence."""
    kinds = {"pixels": "pixels", "patches": "patch features"}
    return kinds.get(stream, f"activations inside the image tower ({stream})")


def _check_backbone(pack: Pack, backbone: Backbone) -> None:
    about = pack.about
    if about.digest != backbone.digest:
        raise ConfigError(
            f"{pack.path} was made with {_named(about.backbone, about.weights, about.digest)}, and "
            f"this run has {_named(backbone.name, backbone.weights, backbone.digest)}: images and "
            "class names must use the same model; use the pack's --backbone and --weights, or "
            "another pack"
        )
    dtype = str(backbone.feature_dtype).removeprefix("torch.")
    if about.dtype != dtype or _precision(about.numerics) != _precision(backbone.numerics):
        raise ConfigError(
            f"MODEL.PREC: {pack.path} was computed in {_precision(about.numerics)}, but this "
            f"run computes in {_precision(backbone.numerics)}; use the precision of the pack, or "
            "make a new pack"
        )


def _named(name: str, weights: str, digest: str) -> str:
    return f"{name} ({weights or 'its own weights'}, digest {digest[:DIGITS]})"


def _precision(numerics: str) -> str:
    return numerics.partition(" ")[0].removeprefix("torch.")


def _check_views(pack: Pack, loader: ImageLoader) -> None:
    about, there = pack.about, pack.tables
    if loader.transform_key(None) not in there:
        raise ConfigError(
            f"{pack.path} was made with another transform ({about.transform}) than this run's "
            f"({loader.transform_key(None)}); make a new pack with this transform"
        )
    wanted = [loader.transform_key(v) for v in range(loader.views)] if loader.views > 1 else []
    trained = any(d.packed and d.packed.pack is pack and d.packed.row < about.rows[0]
                  for d in loader.samples)
    if not trained or all(key in there for key in wanted):
        return
    has = "the test view only"
    if about.views:
        has = f"views 0 to {len(about.views) - 1} of data seed {about.view_seed}"
    raise ConfigError(
        f"INPUT.VIEWS: the run takes {loader.views} augmented views of data seed "
        f"{loader.data_seed}, and {pack.path} has {has}; --views 1 uses the test view; fedvlm "
        f"features --pack FILE --views {loader.views} --data-seed {loader.data_seed} makes a pack "
        "with these views"
    )


def packed_positions(samples: Sequence[Datum], indices: Sequence[int]) -> list[int]:
    """Return which of ``indices`` are images in packs, as positions in it."""
    return [n for n, i in enumerate(indices) if samples[i].packed is not None]


def packed_features(
    loader: ImageLoader, indices: Sequence[int], view: int | None, backbone: Backbone
) -> Tensor:
    """Return the features ``[n, embed_dim]`` of images that are all in packs.

    Args:
        indices: into the loader's samples.
        view: None is the test view.
    """
    out = torch.empty(len(indices), backbone.embed_dim, dtype=backbone.feature_dtype)
    transform = loader.transform_key(view)
    places: dict[int, tuple[Pack, list[int], list[int]]] = {}
    for n, i in enumerate(indices):
        image = loader.samples[i].packed
        assert image is not None  # noqa: S101 (packed_positions)
        _, at, rows = places.setdefault(id(image.pack), (image.pack, [], []))
        at.append(n)
        rows.append(image.row)
    for pack, at, rows in places.values():
        values = pack.rows(transform, np.array(rows, dtype=np.int64))
        out[torch.tensor(at)] = torch.from_numpy(values)
    return out


def origin_of(numerics: str, batch: int) -> str:
    """Return what decides a feature's last bits beside image and weights."""
    return f"{numerics}, batch {batch}"


def foreign_origins(samples: Sequence[Datum], backbone: Backbone) -> list[str]:
    """Return the origins of packs whose features are not, bit for bit, what this machine makes.

    They are part of a run's identity; without any it is the identity of the run on the images.
    """
    here = origin_of(backbone.numerics, batch_size(backbone))
    origins = {origin_of(p.about.numerics, p.about.batch) for p in packs_of(samples)}
    return sorted(origins - {here})


def pack_notes(samples: Sequence[Datum], backbone: Backbone) -> list[str]:
    """Return what a run says of packs that were made elsewhere."""
    return [
        f"the pack's features were computed on another system ({origin}): a run on the images here "
        "would differ in the last bits, so neither can resume the other"
        for origin in foreign_origins(samples, backbone)
    ]
