"""One dataset of (image, label) in memory, by index: ``torch.utils.data.Dataset`` and its kin.

Anything with a length and an index will do: torch's datasets, Hugging Face's (``datasets`` is known
by its shape and never imported), lists of pairs. An image is read when it is wanted and not held,
so a set may be larger than memory; what is kept of it is 32 bytes of digest. A dataset that gives
another image at the same index later is refused: features and resumed runs stand on the content.
"""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvlm.core.errors import ConfigError, DataError, did_you_mean, failure_text
from fedvlm.data.image_records import array_key
from fedvlm.data.memory.pictures import rgb_of

Columns = tuple[Hashable, Hashable]  # where a row has its image and its label
PAIR: Columns = (0, 1)
IMAGE_NAMES, LABEL_NAMES = ("image", "img"), ("label", "labels")
_NESTED = 8  # subsets of subsets whose names are looked for
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class SamplePicture:
    """An image of a dataset, ``datum.Picture``."""

    samples: Samples
    index: int

    @property
    def key(self) -> str:
        """See ``datum.Picture``."""
        return self.samples.key(self.index)

    def read(self) -> NDArray[np.uint8]:
        """See ``datum.Picture``."""
        return self.samples.image(self.index)


class Samples:
    """A dataset of (image, label) pairs or of rows with two such columns.

    Args:
        dataset: has ``len`` and an index.
        where: whose it is and which part, for messages: ``client 'a', train``.
        columns: names of image and label; None finds them.

    Attributes:
        classnames: as the dataset itself says, by label; None where it does not.

    Raises:
        ConfigError: ``columns`` names what is not there, or it is not clear which are meant.
        DataError: it has no length or index, or is empty.
    """

    def __init__(self, dataset: Any, where: str, columns: Columns | None = None) -> None:
        _check(dataset, where)
        self.dataset, self.where, self._columns = dataset, where, columns
        if is_table(dataset):
            self._columns = _table_columns(dataset, where, columns)
        self.classnames = _names_of(dataset, self._columns)
        self._keys: dict[int, bytes] = {}
        self._lock = Lock()  # images are decoded in threads, and few datasets are made for that

    def __len__(self) -> int:
        return len(self.dataset)

    def labels(self, classnames: Sequence[str]) -> Iterator[int]:
        """Yield the label of every image; reads the images too where they come with it.

        Raises:
            DataError: a label that is none, or out of range; client and index are named.
        """
        table = {name: label for label, name in enumerate(classnames)}
        if is_table(self.dataset) and not _has_transform(self.dataset):
            assert self._columns is not None  # noqa: S101 (a table's)
            with self._lock:
                column = list(self.dataset[self._columns[1]])
            yield from (self._label(value, table, i) for i, value in enumerate(column))
            return
        for i in range(len(self)):
            image, label = self._row(i)
            yield self._label(label, table, i)
            self._rgb(image, i)  # remembers its digest: this was the costly part

    def image(self, i: int) -> NDArray[np.uint8]:
        """Return image ``i`` as uint8 ``[H, W, 3]``.

        Raises:
            DataError: it cannot be read, is no image, or is another one than before.
        """
        return self._rgb(self._row(i)[0], i)

    def key(self, i: int) -> str:
        """Return the content key of image ``i``; it is read once.

        Raises:
            DataError: see ``image``.
        """
        if i not in self._keys:
            self.image(i)
        return self._keys[i].hex()

    def _row(self, i: int) -> tuple[Any, Any]:
        """Return image and label as the dataset has them."""
        try:
            with self._lock:
                row = self.dataset[i]
        except Exception as error:  # a dataset is the user's own code
            raise DataError(f"{self._at(i)}: the dataset failed: {failure_text(error)}") from error
        columns = self._columns
        if isinstance(row, Mapping) and columns is None:
            names = [str(name) for name in row]
            columns = self._columns = (_only([], IMAGE_NAMES, names, self._at(i)),
                                       _only([], LABEL_NAMES, names, self._at(i)))
        if columns is None and not (isinstance(row, tuple | list) and len(row) == len(PAIR)):
            raise DataError(
                f"{self._at(i)}: the dataset gives {_said(row)}, not a pair (image, label)"
            )
        at_image, at_label = PAIR if columns is None else columns
        try:
            return row[at_image], row[at_label]
        except (KeyError, IndexError, TypeError) as error:
            raise ConfigError(
                f"{self._at(i)}: columns=({at_image!r}, {at_label!r}) are not in {_said(row)}"
            ) from error

    def _rgb(self, value: Any, i: int) -> NDArray[np.uint8]:
        try:
            array = rgb_of(value)
        except DataError as error:
            raise DataError(f"{self._at(i)}: {error}") from None
        except Exception as error:  # Pillow raises many kinds on broken images
            raise DataError(f"{self._at(i)}: no image: {failure_text(error)}") from error
        digest = bytes.fromhex(array_key(array))
        if self._keys.setdefault(i, digest) != digest:
            raise DataError(
                f"{self._at(i)}: the image differs each time it is read: take random "
                "transforms out of the dataset (views=N trains on augmented views)"
            )
        return array

    def _label(self, value: Any, table: Mapping[str, int], i: int) -> int:
        if isinstance(value, str):
            if value not in table:
                raise DataError(
                    f"{self._at(i)}: there is no class '{value}'{did_you_mean(value, table)}"
                )
            return table[value]
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise DataError(
                f"{self._at(i)}: {_said(value)} is not a label; use a whole number or a class name"
            )
        label = int(value)
        if not 0 <= label < len(table):
            raise DataError(
                f"{self._at(i)}: label {label} is none of 0 to {len(table) - 1}, as there are "
                f"{len(table)} class names"
            )
        return label

    def _at(self, i: int) -> str:
        return f"{self.where} image {i}"


def is_table(dataset: Any) -> bool:
    """Tell whether it is a Hugging Face ``datasets.Dataset``, by its shape."""
    return hasattr(dataset, "column_names") and hasattr(dataset, "features")


def is_sample(value: Any) -> bool:
    """Tell whether it is one image with its label, and no dataset."""
    if isinstance(value, Mapping):
        return any(name in value for name in LABEL_NAMES)
    if not isinstance(value, tuple | list) or len(value) != len(PAIR):
        return False
    label = value[1]
    return isinstance(label, numbers.Integral | str) or getattr(label, "ndim", None) == 0


def _check(dataset: Any, where: str) -> None:
    kind = type(dataset).__name__
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        inner = f"give its .dataset, a {type(dataset.dataset).__name__}" if hasattr(
            dataset, "dataset"
        ) else "give a dataset of which len(d) and d[i] work"
        raise DataError(f"{where}: what is given ({kind}) has no length or no index; {inner}")
    if isinstance(dataset, str | bytes | np.ndarray):
        raise DataError(
            f"{where}: a {kind} is not a dataset of (image, label) pairs; list(zip(images, "
            "labels)) "
            "is one"
        )
    if not len(dataset):
        raise DataError(f"{where}: the dataset is empty; leave it out")


def _table_columns(dataset: Any, where: str, columns: Columns | None) -> Columns:
    names = [str(name) for name in dataset.column_names]
    if columns is not None:
        for name in columns:
            if name not in names:
                raise ConfigError(
                    f"{where}: there is no column {name!r}{did_you_mean(str(name), names)} (there "
                    f"are {', '.join(names)})"
                )
        return columns
    kinds = {n: type(f).__name__ for n, f in dict(dataset.features or {}).items()}
    images = [n for n, kind in kinds.items() if kind == "Image"]
    labels = [n for n, kind in kinds.items() if kind == "ClassLabel"]
    return _only(images, IMAGE_NAMES, names, where), _only(labels, LABEL_NAMES, names, where)


def _only(by_kind: Sequence[str], usual: Sequence[str], names: Sequence[str], where: str) -> str:
    """Return the only column of a kind, or the one of a usual name."""
    choices = list(by_kind) or [n for n in names if n in usual]
    if len(choices) == 1:
        return choices[0]
    what = f"any of {', '.join(choices)}" if choices else f"none of {', '.join(names[:_SHOWN])}"
    raise ConfigError(
        f"{where}: the {usual[0]}s could be {what}; say which columns are meant: "
        "columns=('image', 'label')"
    )


def _names_of(dataset: Any, columns: Columns | None) -> tuple[str, ...] | None:
    """Return the class names of a ``ClassLabel``, or of torchvision's ``classes``."""
    names: Any = None
    for _ in range(_NESTED):
        if names is not None or dataset is None:
            break
        names = _label_names(dataset, columns) if is_table(dataset) else getattr(
            dataset, "classes", None
        )
        dataset = getattr(dataset, "dataset", None)
    if isinstance(names, list | tuple) and names and all(isinstance(n, str) for n in names):
        return tuple(names)
    return None


def _label_names(table: Any, columns: Columns | None) -> Any:
    """Return the names of a table's label column, or of its only ``ClassLabel``."""
    features = dict(table.features or {})
    if columns is not None:
        return getattr(features.get(columns[1]), "names", None)
    found = [f.names for f in features.values() if type(f).__name__ == "ClassLabel"]
    return found[0] if len(found) == 1 else None


def _has_transform(dataset: Any) -> bool:
    """Tell whether rows of a table go through a function of the user's, which wants whole rows."""
    form = getattr(dataset, "format", None)
    return isinstance(form, Mapping) and form.get("type") == "custom"


def _said(value: Any) -> str:
    """Return what something is, short."""
    if isinstance(value, Mapping):
        return f"a row of {', '.join(map(str, list(value)[:_SHOWN]))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {list(shape)}" if shape is not None else "")
