"""What a run's model weighs and sees in single images, as figures draw it (``answers``)."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch.nn.functional as F

from fedvlm.api.evaluate import files_or_arrays
from fedvlm.api.model import Maps, Model
from fedvlm.api.run import Run, load
from fedvlm.core.errors import ConfigError, DataError, fold
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import Datum
from fedvlm.data.partition.index_file import read_index_file
from fedvlm.report.figures.answers.features import Features
from fedvlm.report.figures.answers.looks import Looks


def seen_of(args: Namespace, folder: Path) -> dict[str, Looks | Features]:
    """Return what a client's model weighs and sees in the images that the words name.

    Returns:
        ``looks`` and ``features``, as far as they are asked for: fields of ``FigureRuns``.

    Raises:
        ConfigError: a method without maps, no such client, or several.
        DataError: no such images, or none with pixels.
    """
    run = load(folder, device=args.device, weights=args.weights, trainer=args.trainer,
               trust_code=args.trust_code, round=args.round)
    models = run.named(args.client) if args.client else {"client-0": run.client(0)}
    if len(models) > 1:
        raise ConfigError("--client all: such a figure is of one model; give a client's number, "
                          "or global")
    ((name, model),) = models.items()
    seen: dict[str, Looks | Features] = {}
    if args.images:
        seen["looks"] = looks(model.maps(args.images))
    if args.test_images:
        some = test_images(run, name, args.test_images, args.root)
        seen["looks"] = looks(model.maps(files_or_arrays(some)), [spoken(d) for d in some])
    if args.features:
        some = test_images(run, name, args.features, args.root)
        seen["features"] = features(model, some)
    return seen


def features(model: Model, some: Sequence[Datum]) -> Features:
    """Return the features of labelled images in a model, and whether its answers are right.

    Raises:
        ConfigError: an image has no class of the run's: a set of labels, or a caption.
    """
    label = {fold(name): i for i, name in enumerate(model.classnames)}
    if any(fold(spoken(datum)) not in label for datum in some):
        raise ConfigError("--features colours images by their class, and this run's have sets of "
                          "labels or captions")
    true = np.array([label[fold(spoken(datum))] for datum in some])
    found, said = model.seen(files_or_arrays(some))
    values = F.normalize(found, dim=-1).double().numpy()
    return Features(values, true, said.labels == true, model.classnames)


def spoken(datum: Datum) -> str:
    """Return an image's class as prompts have it."""
    return datum.classname.replace("_", " ")


def looks(maps: Maps, names: Sequence[str] = ()) -> Looks:
    """Return maps with the classes chosen: of a weight for each class, the one that is said.

    Args:
        names: of the images; the files' without any.
    """
    labels = maps.said.labels
    fields = {}
    for name, tensor in maps.fields.items():
        values = tensor.double().numpy()
        if values.ndim > 2:  # noqa: PLR2004 (images, classes, patches)
            values = values[np.arange(len(values)), labels]
        fields[name] = values if values.ndim == 1 else _grid(values)
    said = [f"says {best[0][0]} ({best[0][1]:.2f})" for best in maps.said.top(1)]
    shown = names or [Path(name).name for name in maps.said.names]
    return Looks(maps.figure, maps.pictures, shown, said, fields)


def test_images(run: Run, model: str, number: int, root: str = "") -> list[Datum]:
    """Return some test images of a client, or of all for the global model, evenly from its list.

    Raises:
        DataError: they are not there, have no names in the run, or have no pixels.
    """
    cfg = run.config.clone()
    cfg.defrost()
    cfg.DATASET.ROOT = root or cfg.DATASET.ROOT
    clients = read_index_file(run.path / "partition.json")["clients"]
    word = model.removeprefix("client-")
    chosen = [clients[int(word)]] if word.isdigit() else clients
    there = {datum.key: datum for datum in load_dataset(cfg).test}
    keys = list(dict.fromkeys(key for client in chosen for key in client["test"] if key in there))
    if not keys:
        raise DataError(f"{run.path}: the test images of {model} are not among those of "
                        f"{cfg.DATASET.NAME} here; give images with --images")
    places = np.linspace(0, len(keys) - 1, min(number, len(keys))).round().astype(int)
    some = [there[keys[i]] for i in places]
    if any(datum.packed for datum in some):
        raise DataError(f"{cfg.DATASET.NAME} is a feature pack here, which has no pixels to draw "
                        "maps over; give images with --images")
    return some


def _grid(values: np.ndarray) -> np.ndarray:
    """Return weights ``[n, M]`` as ``[n, rows, columns]`` of a square image.

    Raises:
        ConfigError: patches are not in a square.
    """
    side = math.isqrt(values.shape[1])
    if side * side != values.shape[1]:
        raise ConfigError(f"the image tower cuts an image into {values.shape[1]} patches, which "
                          "are no square; their map cannot be drawn")
    return values.reshape(-1, side, side)
