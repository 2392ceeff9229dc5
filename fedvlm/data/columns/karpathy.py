"""Karpathy's caption splits (``dataset_flickr30k.json``, ``dataset_flickr8k``, ``dataset_coco``).

One JSON object whose ``images`` each have ``filename``, in COCO also ``filepath`` (``val2014``),
``split`` (train, val, test, and in COCO ``restval``: validation images that everybody trains on),
and ``sentences``, each with its text under ``raw``. Karpathy and Fei-Fei, Deep Visual-Semantic
Alignments, CVPR 2015.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvlm.core.errors import DataError

HEADER = ["path", "sentences", "split"]
_TRAINED = "restval"


def read_split(images: Sequence[Any], path: Path) -> list[tuple[int, list[str]]]:
    """Return the images as numbered rows of ``HEADER``, the sentences as a JSON list.

    Raises:
        DataError: an image without one of its keys; names it by its number.
    """
    rows = []
    for number, image in enumerate(images, 1):
        try:
            texts = [str(sentence["raw"]) for sentence in image["sentences"]]
            folder, name, part = image.get("filepath", ""), image["filename"], image["split"]
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}, image {number}: a split of captions has for each image "
                            "filename, split and sentences with raw") from error
        place = f"{folder}/{name}" if folder else str(name)
        part = "train" if part == _TRAINED else str(part)
        rows.append((number, [place, json.dumps(texts), part]))
    return rows
