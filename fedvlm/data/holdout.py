"""The server's own images: some that no client gets, another data set's, or those of a folder.

``DATASET.SERVER_HOLDOUT n`` takes n images of each class away from the published training images,
then from the validation images, before shots are drawn and images are dealt, the same for
every method. Which ones is a function of (DATA_SEED, class). Each class keeps an image in every
list where it has one. With n = 0 nothing is drawn and nothing changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError, DataError, did_you_mean, fold
from fedvlm.core.files import user_path
from fedvlm.core.progress import Progress
from fedvlm.core.rng import numpy_stream
from fedvlm.core.transform import TransformSpec
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import Datum, IntArray, refuse_targets
from fedvlm.data.image_records import ImageRecords, records_of
from fedvlm.data.images import ImageLoader, decodable
from fedvlm.data.locate import IMAGE_SUFFIXES, explain_refusals, image_files, listing
from fedvlm.data.partition.index_file import name_in
from fedvlm.data.partition.spec import ImagePool
from fedvlm.data.targets import set_config

_PURPOSE = "server-holdout"  # of the random stream
LISTS = ("train", "val")  # in this order
SERVER_KEY = "server"  # of the index file
OF_DATASET, OF_FOLDER = "dataset:", "folder:"
_UNKNOWN = -1  # label of an image whose class the run does not have


# ---- images that no client gets -------------------------------------------------------------
def draw_holdout(
    pool: ImagePool, each: int, seed: int, classes: Collection[int],
    taken: Mapping[str, IntArray] | None = None,
) -> dict[str, IntArray]:
    """Return the positions of the server's images, sorted, in the training and validation lists.

    Args:
        pool: labels of the whole set, -1 for images that take no part.
        each: images per class.
        seed: DATA_SEED.
        classes: those of the run; only they are refused, others give what they can spare.
        taken: positions that clients have already (those of a few-shot file).

    Raises:
        ConfigError: a class has too few images to keep one in each list.
    """
    taken = taken or {}
    drawn: dict[str, list[IntArray]] = {part: [] for part in LISTS}
    classed = {part: _by_class(pool.labels[part], pool.num_classes) for part in LISTS}
    spared: dict[int, int] = {}  # of the classes that have too few
    for label in range(pool.num_classes):
        rng, left, images = numpy_stream(seed, _PURPOSE, label), each, 0
        for part in LISTS:
            mine = classed[part][label]
            free = np.setdiff1d(mine, taken.get(part, mine[:0]))
            spare = min(left, len(free), max(len(mine) - 1, 0))
            drawn[part].append(rng.permutation(free)[:spare])
            left, images = left - spare, images + len(mine)
        if left and images and label in classes:
            spared[label] = each - left
    if spared:
        _refuse_few(pool, each, spared)
    return {part: np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *drawn[part]]))
            for part in LISTS}


def _by_class(labels: IntArray, classes: int) -> list[IntArray]:
    """Return the positions of each class, ascending."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.searchsorted(labels[order], np.arange(classes + 1)))[1:-1]


def _refuse_few(pool: ImagePool, each: int, spared: Mapping[int, int]) -> None:
    label = min(spared, key=lambda one: (spared[one], one))
    train, val = (int((pool.labels[part] == label).sum()) for part in LISTS)
    more = f" (and {len(spared) - 1} more classes have too few)" if len(spared) > 1 else ""
    raise ConfigError(
        f"DATASET.SERVER_HOLDOUT {each}: class {pool.class_name(label)} has {train} training and "
        f"{val} validation {pool.kind}s for the clients and the server, and would lose its last one"
        f"{more}; set it to {spared[label]} or less"
    )


def remove_positions(pool: ImagePool, positions: Mapping[str, IntArray]) -> ImagePool:
    """Return the pool in which the images at ``positions`` take no part."""
    labels, domains = dict(pool.labels), dict(pool.domains)
    for part, at in positions.items():
        for arrays in (labels, domains):
            if part in arrays:
                arrays[part] = arrays[part].copy()
                arrays[part][at] = -1
    return replace(pool, labels=labels, domains=domains)


def holdout_from(
    content: Mapping[str, Any], parts: Mapping[str, Sequence[Datum]], where: str
) -> dict[str, IntArray]:
    """Return the server's images that an index file names, as positions in the set's lists.

    Raises:
        DataError: it names none, or one that the lists lack.
    """
    keys = content.get(SERVER_KEY)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise DataError(f"{where}: its spec has server_holdout but it has no list '{SERVER_KEY}' "
                        "of paths")
    name_of = name_in(content, Path(where))
    position = {name_of(d.key): (part, i) for part in LISTS for i, d in enumerate(parts[part])}
    absent = [key for key in keys if key not in position]
    if absent:
        raise DataError(
            f"{where}: {len(absent)} image(s) of the server are not in the train or val list of "
            f"this set (first: {absent[0]})"
        )
    return {
        part: np.array(sorted(i for p, i in (position[key] for key in keys) if p == part), np.int64)
        for part in LISTS
    }


# ---- as the server sees them ----------------------------------------------------------------
@dataclass(frozen=True)
class ServerImages:
    """Images for the server, with the pixels of the test transform (``federation.server.Proxy``).

    There is no way from here to any other image.

    Attributes:
        source: ``holdout``, ``dataset:NAME``, ``folder:DIR`` or ``clients``.
        labels: ``[P]`` int64 of the run's classes, -1 where it is not known.
        loader: of these images only.
        keys: sha256 of each image's bytes.
    """

    source: str
    labels: Tensor
    loader: ImageLoader
    keys: tuple[str, ...]

    @staticmethod
    def of(
        source: str, samples: Sequence[Datum], labels: Sequence[int], transform: TransformSpec,
        records: ImageRecords,
    ) -> ServerImages:
        """Return the images ``samples`` with labels ``[P]``.

        Args:
            transform: of the run's backbone.
            records: in which their content keys are looked up.
        """
        keys = tuple(records.content_key(sample) for sample in samples)
        return ServerImages(
            source, torch.tensor(labels, dtype=torch.int64), ImageLoader(samples, transform), keys
        )

    def __len__(self) -> int:
        """Return their number."""
        return len(self.keys)

    def pixels(self, positions: Tensor) -> Tensor:
        """Return normalised pixels ``[n, 3, S, S]`` of the images at ``positions [n]``."""
        return self.loader.batch(positions)

    @property
    def digest(self) -> str:
        """The sha256 over images and labels, in order."""
        text = "\n".join(self.keys) + repr(self.labels.tolist())
        return hashlib.sha256(text.encode()).hexdigest()


def other_images(
    source: str, cfg: CfgNode, run_set: str, classnames: Sequence[str], transform: TransformSpec,
    progress: Progress | None = None,
) -> tuple[ServerImages, list[str]]:
    """Return the training images of ``dataset:NAME`` or all images of ``folder:DIR``, and notes.

    Args:
        run_set: name of the run's own set, which is refused.
        classnames: of the run, by label; an image of another set has a label where its class
            is called the same (case, blanks, dashes and underscores aside).
        transform: of the run's backbone.
        progress: called with (what, done, of) while images are checked.

    Raises:
        ConfigError: an unknown set, the run's own, or one without training images.
        DataError: a missing folder, no image, or images that do not decode under ``refuse``.
    """
    notes: list[str] = []
    if source.startswith(OF_DATASET):
        items, notes = _of_dataset(source, cfg, run_set)
    else:
        items = _of_folder(source)
    records = records_of(items, cfg)
    records.progress = progress
    items, broken = decodable(source, items, records, cfg.DATASET.ON_CORRUPT)
    if not items:
        raise DataError(f"server images {source}: none of them decodes")
    label_of = {fold(name): label for label, name in enumerate(classnames)}
    folder = source.startswith(OF_FOLDER)
    labels = [_UNKNOWN if folder else label_of.get(fold(d.classname), _UNKNOWN) for d in items]
    images = ServerImages.of(source, items, labels, transform, records)
    return images, [*notes, *(f"{source}: {note}" for note in broken)]


def _of_dataset(source: str, cfg: CfgNode, run_set: str) -> tuple[list[Datum], list[str]]:
    word, what = source.removeprefix(OF_DATASET), f"server images {source}"
    try:
        node = set_config(word, cfg, what)
        refuse_targets(what, sets=node.DATASET.LABELS, captions=node.DATASET.CAPTIONS)
        data = load_dataset(node)
    except (ConfigError, DataError) as error:
        raise type(error)(f"{what}: {str(error).removeprefix(f'{what}: ')}") from None
    if data.name == run_set:
        raise ConfigError(
            f"{what}: that is the run's own set, whose images the clients have; name another, or "
            "set DATASET.SERVER_HOLDOUT above 0 and take holdout"
        )
    if not data.train_x:
        raise ConfigError(f"{what}: {data.name} has no training images; name another set")
    return data.train_x, [n if n.startswith(data.name) else f"{data.name}: {n}" for n in data.notes]


@explain_refusals()
def _of_folder(source: str) -> list[Datum]:
    folder = user_path(source.removeprefix(OF_FOLDER))
    if not folder.is_dir():
        names = listing(folder.parent) if folder.parent.is_dir() else []
        why = "is a file, not a folder" if folder.exists() else "does not exist"
        raise DataError(
            f"server images {source}: {folder} {why}{did_you_mean(folder.name, names)}"
        )
    files = image_files(folder)
    if not files:
        raise DataError(
            f"server images {source}: there is no image below {folder} "
            f"({', '.join(IMAGE_SUFFIXES)})"
        )
    base = str(folder.resolve())
    return [Datum(f"{base}/{file}", _UNKNOWN, key=file) for file in files]
