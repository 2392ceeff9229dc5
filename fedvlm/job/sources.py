"""Where a run's images come from: cached features, activations computed once, or pixels."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.config.build import flat
from fedvlm.console.rows import human_bytes
from fedvlm.core import rng
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import user_path
from fedvlm.core.progress import Progress
from fedvlm.data.federated import FederatedData
from fedvlm.data.holdout import OF_DATASET, OF_FOLDER, ServerImages, other_images
from fedvlm.data.images import ImageLoader
from fedvlm.federation.local.streams import prove_method
from fedvlm.federation.rounds import Federation
from fedvlm.federation.trainer import Trainer
from fedvlm.job.images.packed import packed_features, packed_positions, packs_of
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.bank import IN_MEMORY, LOW, Bank, bank_path, has_room, row_bytes
from fedvlm.models.features.code import package_text, trainer_text
from fedvlm.models.features.decode import Throughput
from fedvlm.models.features.encode import cached_features
from fedvlm.models.features.proof import FOLDER, JOINT, keep_proof, read_proof
from fedvlm.models.features.sources import (
    FeatureSource,
    PixelSource,
    StreamSource,
    Table,
    check_streams,
    join_sources,
)
from fedvlm.models.features.store import default_dir
from fedvlm.models.towers.vision import INSIDE, PATCHES, PREFIX
from fedvlm.models.vlmodel import VLModel, tower_of
from fedvlm.runs.identity import identity_plain

HOLDOUT, CLIENTS = "holdout", "clients"  # sources of server images
DIGITS = 8  # of a digest in a note
GB = 10**9
Encode = Callable[[Sequence[int], "int | None"], Table]
Opened = tuple[Bank, list[str], list[int]]  # with the keys of images, and their positions


def first_inside(streams: Sequence[str]) -> str | None:
    """Return the stream of the lowest block or stage among ``streams``; None without any."""
    inside = [s for s in streams if s.startswith(INSIDE)]
    return min(inside, key=lambda s: int(s.partition(".")[2]), default=None)


def image_sources(
    cfg: CfgNode, data: FederatedData, model: VLModel, loader: ImageLoader, labels: Tensor,
    trainer: Trainer, progress: Progress | None, tell: Callable[[str], None] | None = None,
) -> tuple[StreamSource, StreamSource]:
    """Return (training views, test view) of what the trainer needs, what is frozen done once.

    Every stream that it declares, image features and what lies inside the tower out of stores;
    pixels instead of the latter where those have no room.

    Args:
        tell: told what they will take, or that there is no room, before any image is read.

    Raises:
        ConfigError: streams that nobody can serve, or activations above ``BANK.GB``.
        DataError: a store that cannot be written.
    """
    streams = list(trainer.streams(model))
    check_streams(streams, model)
    banks = _banks(cfg, data, model, loader, streams)
    if banks:
        said = bank_words(cfg, model, data, loader, streams)
        note, room = _room_of(cfg, banks.values(), store_dir(cfg) or default_dir(), said)
        model.notes.append(note)
        if tell is not None:
            tell(note)
        if not room:
            inside = {stream for stream, _ in banks}
            streams = list(dict.fromkeys("pixels" if s in inside else s for s in streams))
            for bank, _, _ in banks.values():
                bank.close()
    pairs: list[tuple[FeatureSource | PixelSource, FeatureSource | PixelSource]] = []
    for stream in streams:
        spent = Throughput()
        if stream == "pixels":
            pairs.append(pixel_sources(loader, labels))
            continue
        if stream == "features":
            encode: Encode = partial(features_of, cfg, model.backbone, loader, progress, spent,
                                     model.notes)
        else:
            of = {view: bank for (name, view), bank in banks.items() if name == stream}
            encode = partial(_activations, cfg, model, loader, progress, spent, of)
        pairs.append(_sources(data, loader, labels, stream, encode))
        model.notes.append(spent.sentence(_said(stream)))
    train, test = map(list, zip(*pairs, strict=True))
    if streams == [PATCHES]:  # zero-shot CLIP, the reference of every run, reads image features
        every = _every(data)
        features = features_of(cfg, model.backbone, loader, progress, Throughput(), model.notes,
                               every, None)
        test.append(FeatureSource.of((features,), torch.tensor(every), labels))
    return join_sources(train), join_sources(test)


def _banks(
    cfg: CfgNode, data: FederatedData, model: VLModel, loader: ImageLoader, streams: Sequence[str]
) -> dict[tuple[str, int | None], Opened]:
    """Return by stream and view: the bank, the images' keys, and the images."""
    banks: dict[tuple[str, int | None], Opened] = {}
    views = list(range(loader.views)) if loader.views > 1 else []
    for stream in streams:
        if stream in ("features", "pixels"):
            continue
        for view in [None, *views]:
            images = _every(data) if view is None else train_images(data)
            bank = Bank(
                tower_of(model, stream), stream, loader.transform_key(view),
                store_dir(cfg) or default_dir(), cfg.BANK.PREC,
            )
            banks[stream, view] = bank, [loader.content_key(i) for i in images], images
    return banks


def _room_of(
    cfg: CfgNode, banks: Collection[Opened], folder: Path, said: str
) -> tuple[str, bool]:
    """Return what is said of activations, and if they have room (``ConfigError``: ``BANK.GB``)."""
    wanted = sum(bank.bytes(bank.lacking(keys)) for bank, keys, _ in banks)
    _check_budget(cfg, wanted, folder, said)
    slow = "images go through the whole tower at every step (slower); set"
    if not has_room(folder, wanted):
        if wanted > IN_MEMORY:
            return (f"{wanted / GB:.1f} GB of activations do not fit into {folder}: {slow} "
                    "CACHE_DIR to a larger disk"), False
        said = f"{said}; not cached: not enough space in {folder}"
        for bank, _, _ in banks:
            bank.keeps = False
    aside, place = sum(bank.aside(keys) for bank, keys, _ in banks), tempfile.gettempdir()
    if aside and not has_room(Path(place), aside):
        return (f"{aside / GB:.1f} GB of activations cannot be cached in {folder}: not enough "
                f"space there or in {place}: {slow} TMPDIR to a larger disk"), False
    return said, True


def _check_budget(cfg: CfgNode, wanted: int, folder: Path, said: str) -> None:
    """Refuse activations above ``BANK.GB`` (``ConfigError``)."""
    if not cfg.BANK.GB or wanted <= cfg.BANK.GB * GB:
        return
    mend = "" if cfg.BANK.PREC == LOW else f", BANK.PREC {LOW} (half of it; results name it)"
    raise ConfigError(
        f"{said}: {wanted / GB:.3g} GB more than {folder} has, above BANK.GB {cfg.BANK.GB:g}: set "
        f"a larger BANK.GB{mend}, or --plain (no cache: images go through the whole tower at "
        "every step)"
    )


def check_bank(
    cfg: CfgNode, model: VLModel, data: FederatedData, loader: ImageLoader, streams: Sequence[str]
) -> None:
    """Refuse activations above ``BANK.GB`` (``ConfigError``); stores are opened if need be only."""
    inside = [s for s in streams if s not in ("features", "pixels")]
    images = images_to_encode(data, loader.views)
    most = images * sum(row_bytes(tower_of(model, s), s, cfg.BANK.PREC) for s in inside)
    if not inside or cfg.FED.PLAIN or not cfg.BANK.GB or most <= cfg.BANK.GB * GB:
        return
    folder = store_dir(cfg) or default_dir()
    paths = [bank_path(tower_of(model, s), s, loader.transform_key(None), folder, cfg.BANK.PREC)
             for s in inside]
    if any(path.is_file() for path in paths):
        banks = _banks(cfg, data, model, loader, streams).values()
        most = sum(bank.bytes(bank.lacking(keys)) for bank, keys, _ in banks)
        for bank, _, _ in banks:
            bank.close()
    _check_budget(cfg, most, folder, bank_words(cfg, model, data, loader, streams))


def bank_words(
    cfg: CfgNode, model: VLModel, data: FederatedData, loader: ImageLoader, streams: Sequence[str]
) -> str:
    """Say what the activations that a run keeps take; empty where it keeps none."""
    inside = [s for s in streams if s not in ("features", "pixels")]
    images, kind = images_to_encode(data, loader.views), cfg.BANK.PREC
    parts = []
    for stream in inside:
        size = row_bytes(tower_of(model, stream), stream, kind)
        parts.append(f"{_said(stream)} take {size / 1e3:,.0f} kB an image, "
                     f"{human_bytes(size * images)} for {images:,}")
    if inside and kind == LOW:
        parts.append(f"kept in {LOW} (BANK.PREC): results differ slightly from full precision")
    return "; ".join(parts)


def _said(stream: str) -> str:
    """Return what a stream is called in a note."""
    if stream.startswith(PREFIX):
        return f"activations before block {stream.removeprefix(PREFIX)}"
    if stream.startswith(INSIDE):
        return f"activations behind stage {stream.partition('.')[2]}"
    return "patch features" if stream == PATCHES else "image features"


def _activations(
    cfg: CfgNode, model: VLModel, loader: ImageLoader, progress: Progress | None,
    spent: Throughput, banks: Mapping[int | None, Opened], indices: Sequence[int],
    view: int | None,
) -> Table:
    bank, keys, _ = banks[view]
    with _reading(loader, spent):
        return bank.table(
            keys, lambda n: loader.load(indices[n], view, key=keys[n]),
            _named(progress, loader, view), workers=int(cfg.DATALOADER.NUM_WORKERS), spent=spent,
            notes=model.notes,
        )


def pixel_sources(loader: ImageLoader, labels: Tensor) -> tuple[PixelSource, PixelSource]:
    """Return (training views, test view) without any cache."""
    return (
        PixelSource(loader.load, labels),
        PixelSource(lambda i, _view: loader.load(i, None), labels),
    )


def server_images(
    source: str, cfg: CfgNode, data: FederatedData, loader: ImageLoader,
    progress: Progress | None, unseen: Sequence[int] = (),
) -> tuple[ServerImages | None, list[str]]:
    """Return the images that the method's server side sees (``Trainer.proxy_source``), and notes.

    None where the source is empty, or where the run holds out no image. Nothing is encoded. No
    image is one of the ``unseen`` clients'.

    Raises:
        ConfigError: clients without validation images; a data set that cannot be taken.
        DataError: a missing folder or data set, or no image in it.
    """
    if not source:
        return None, []
    if source.startswith((OF_DATASET, OF_FOLDER)):
        images, notes = other_images(source, cfg, data.name, data.classnames, loader.spec, progress)
    else:
        indices = data.server
        if source == CLIENTS:
            parts = [client.val for c, client in enumerate(data.clients) if c not in unseen]
            indices = np.unique(np.concatenate(parts))
            if not len(indices):
                raise ConfigError(
                    "server images clients: no client has validation images; set "
                    "DATASET.VAL_SHOTS above 0"
                )
        elif source != HOLDOUT:
            raise ConfigError(
                f"server images must be {HOLDOUT}, {OF_DATASET}NAME, "
                f"{OF_FOLDER}DIR or {CLIENTS}, not '{source}'"
            )
        if not len(indices):
            return None, []
        samples, labels = [data.samples[i] for i in indices], data.labels[indices].tolist()
        images = ServerImages.of(source, samples, labels, loader.spec, data.records)
        notes = list[str]()
    packs = packs_of(images.loader.samples)
    if packs:
        raise ConfigError(
            f"server images {source}: the method reads their pixels, but {packs[0].path} is a "
            "feature pack without images; give the images with --root, or switch off server "
            "training (see fedvlm list METHOD)"
        )
    whose = "validation images of its clients" if source == CLIENTS else "images of its own"
    digest = images.digest[:DIGITS]
    notes.append(f"the server has {len(images):,} {whose} ({source}), digest {digest}")
    server = set(data.server.tolist())
    others = {loader.content_key(i) for i in range(len(data.samples)) if i not in server}
    copies = sum(key in others for key in images.keys)
    if copies and source != CLIENTS:
        notes.append(
            f"{copies} of the server's images ({source}) are identical to training images "
            "of clients or to test images"
        )
    return images, notes


def features_of(
    cfg: CfgNode, backbone: Backbone, loader: ImageLoader, progress: Progress | None,
    spent: Throughput, notes: list[str], indices: Sequence[int], view: int | None,
) -> Tensor:
    """Return the features ``[n, embed_dim]`` of images and one view, out of the store or into it.

    Images in feature packs have theirs there; nothing of them goes into the store.

    Args:
        indices: into the loader's samples.
        view: None is the test view.
        spent: told where the time went.
        notes: told about damaged files.

    Raises:
        DataError: an image changed meanwhile or does not decode, or the cache cannot be written.
    """
    packed = packed_positions(loader.samples, indices)
    if packed:
        unpacked = partial(features_of, cfg, backbone, loader, progress, spent, notes)
        return _partly_packed(backbone, loader, spent, unpacked, indices, packed, view)
    keys = [loader.content_key(i) for i in indices]
    with _reading(loader, spent):
        return cached_features(
            backbone, keys, lambda n: loader.load(indices[n], view, key=keys[n]),
            view=-1 if view is None else view, transform_digest=loader.transform_key(view),
            cache_dir=store_dir(cfg), workers=int(cfg.DATALOADER.NUM_WORKERS),
            progress=_named(progress, loader, view), notes=notes, spent=spent,
        )


def _partly_packed(
    backbone: Backbone, loader: ImageLoader, spent: Throughput,
    unpacked: Callable[[Sequence[int], int | None], Tensor],
    indices: Sequence[int], packed: Sequence[int], view: int | None,
) -> Tensor:
    """Return features of which those at the positions ``packed`` are in packs."""
    rows = packed_features(loader, [indices[n] for n in packed], view, backbone)
    spent.packed += len(packed)
    inside = set(packed)
    others = [n for n in range(len(indices)) if n not in inside]
    if not others:
        return rows
    out = torch.empty(len(indices), rows.shape[1], dtype=rows.dtype)
    out[torch.tensor(packed)] = rows
    out[torch.tensor(others)] = unpacked([indices[n] for n in others], view)
    return out


def refuse_unequal_streams(
    cfg: CfgNode, federation: Federation, cached: StreamSource, pixels: StreamSource,
    train: Sequence[int],
) -> None:
    """Refuse a method whose cached streams give other numbers than pixels do.

    Two images are compared (``local.streams.prove_method``; drawn ones where features suffice). A
    proof that held for the same method, backbone and code is read from beside the feature store.

    Raises:
        ConfigError: they differ, or the method fails on one of them.
    """
    trainer, model = federation.trainer, federation.model
    streams = cached.streams
    if streams == pixels.streams or not train:
        return
    key = proof_key(cfg, trainer, model, streams)
    path = (store_dir(cfg) or default_dir()) / FOLDER / f"{key}.json"
    if key and read_proof(path, key, JOINT.join(streams)) is not None:
        return
    pair = torch.tensor([train[0], train[-1]])
    if streams == ("features",):  # what the store holds is proved by content: no image is opened
        cached, pixels, pair = _drawn_pair(model, cached.labels[pair])
    elif cfg.BANK.PREC == LOW:  # what the method reads is proved, not how it was rounded
        cached = _full_pair(model, cached, pixels, pair)
    proof = prove_method(
        trainer, model, federation.p0, federation.server_context, cached, pixels, pair,
        federation.plan.seed,
    )
    if key:
        about = {"trainer": trainer.name, "backbone": model.backbone.name}
        keep_proof(path, key, proof, about)


def _drawn_pair(model: VLModel, labels: Tensor) -> tuple[FeatureSource, PixelSource, Tensor]:
    """Return two random images as features and as pixels, with their positions."""
    backbone = model.backbone
    images = backbone.draw_input(2, rng.stream(0, "stream-proof-pixels"))
    with torch.no_grad():
        features = backbone.encode_image(images.to(model.device, model.dtype))
    at = torch.arange(2)
    return (
        FeatureSource.of([features], at, labels),
        PixelSource(lambda i, view: images[i].to(model.dtype), labels), at,
    )


def _full_pair(
    model: VLModel, cached: StreamSource, pixels: StreamSource, pair: Tensor
) -> StreamSource:
    """Return two images with activations in full precision, the other streams as they are."""
    images = pixels.fetch(pair, 0)["pixels"]
    served, parts = cached.fetch(pair, 0), list[FeatureSource | PixelSource]()
    for stream in cached.streams:
        values = served[stream]
        if stream not in ("features", "pixels"):
            with torch.no_grad():
                values = tower_of(model, stream).compute(images, stream).cpu()
        parts.append(FeatureSource.of((values,), pair, cached.labels, stream))
    return join_sources(parts)


def proof_key(
    cfg: CfgNode, trainer: Trainer, model: VLModel, streams: Sequence[str]
) -> str:
    """Return a digest of all that a proof depends on; empty where the method has no source text."""
    backbone, node = model.backbone, f"TRAINER.{trainer.name.upper()}."
    text = trainer_text(type(trainer))
    if not text:
        return ""
    config = {
        k: v for k, v in flat(cfg).items() if k.startswith(("PEFT.", node)) or k == "MODEL.PREC"
    }
    return hashlib.sha256(json.dumps([
        type(trainer).__qualname__, text, package_text(), backbone.digest,
        backbone.transform_spec.digest, backbone.numerics, list(streams), identity_plain(config),
    ], sort_keys=True).encode()).hexdigest()


def store_dir(cfg: CfgNode) -> Path | None:
    """Return the feature cache's folder; None leaves the choice to the store."""
    return user_path(cfg.CACHE_DIR) if cfg.CACHE_DIR else None


def images_to_encode(data: FederatedData, views: int) -> int:
    """Return how many images a run encodes before it begins, every training view counted."""
    return len(_every(data)) + (views * len(train_images(data)) if views > 1 else 0)


def train_images(data: FederatedData) -> list[int]:
    """Return the clients' training samples, ascending."""
    return sorted({int(i) for c in data.clients for part in (c.train, c.unlabelled) for i in part})


def _every(data: FederatedData) -> list[int]:
    return sorted(
        {int(i) for c in data.clients for part in (c.train, c.val, c.test, c.unlabelled)
         for i in part}
        | set(data.global_test.tolist()) | set(data.new_test.tolist())
        | {int(i) for other in data.others for i in other.indices}
    )


def _sources(
    data: FederatedData, loader: ImageLoader, labels: Tensor, stream: str, encode: Encode
) -> tuple[FeatureSource, FeatureSource]:
    every, train = _every(data), train_images(data)
    test = encode(every, None)
    test_source = FeatureSource.of((test,), torch.tensor(every), labels, stream)
    if loader.views == 1 or not train:  # a server whose clients are elsewhere has none
        return test_source, test_source
    views = tuple(encode(train, v) for v in range(loader.views))
    return FeatureSource.of(views, torch.tensor(train), labels, stream), test_source


def _named(progress: Progress | None, loader: ImageLoader, view: int | None) -> Progress | None:
    """Return a progress that also says which view is encoded."""
    if progress is None or view is None:
        return progress
    return lambda what, done, of: progress(f"{what}, view {view + 1} of {loader.views}", done, of)


@contextmanager
def _reading(loader: ImageLoader, spent: Throughput) -> Iterator[None]:
    """Add to ``spent`` what the loader says of its file access meanwhile."""
    before = loader.reading
    try:
        yield
    finally:
        spent.reading += loader.reading - before
