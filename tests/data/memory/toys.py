"""Datasets in memory as other libraries have them, made of small coloured images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

NAMES = ["red ball", "green ball", "blue ball"]


def pixels(seed: int, label: int) -> np.ndarray:
    """An image of one colour with noise, uint8 ``[20, 20, 3]``."""
    rng = np.random.default_rng([seed, label])
    array = rng.integers(0, 40, (20, 20, 3), dtype=np.uint8)
    array[..., label % 3] += 180
    return array


def rows(seed: int, each: int = 2) -> list[tuple[Image.Image, int]]:
    """``each`` images of every class with their labels."""
    return [
        (Image.fromarray(pixels(100 * seed + i, label)), label)
        for i in range(each) for label in range(len(NAMES))
    ]


class Pairs(torch.utils.data.Dataset):
    """A map-style dataset that counts how often it is read."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows, self.reads = rows, 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.rows[index]


class ClassLabel:
    """Named as Hugging Face's feature."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


Value = type("Value", (), {})
Picture = type("Image", (), {})


class Table:
    """What is used of Hugging Face's ``datasets.Dataset``: columns, features, rows, a column."""

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, Any]) -> None:
        self.columns, self.features = columns, features
        self.column_names = list(columns)
        self.rows = 0

    @classmethod
    def of(cls, pairs: list[tuple[Any, int]], **more: list[Any]) -> Table:
        """A table with the columns ``img`` and ``kind``."""
        columns = {"img": [x for x, _ in pairs], "kind": [y for _, y in pairs]} | more
        features = {"img": Picture(), "kind": ClassLabel(NAMES)} | {n: Value() for n in more}
        return cls(columns, features)

    def __len__(self) -> int:
        return len(self.columns["img"])

    def __getitem__(self, at: int | str) -> Any:
        if isinstance(at, str):
            return self.columns[at]
        self.rows += 1
        return {name: column[at] for name, column in self.columns.items()}
