"""Small feature packs, made without a backbone, and files that pretend to be one."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.packs.file import read_container
from fedvlm.data.packs.lists import hash_groups, hash_images, write_pack_file
from fedvlm.data.packs.pack import About, open_pack
from fedvlm.data.targets import split_digest

WIDTH = 4
TRANSFORM = "test:v1:32:bicubic:shortest:0.5"


def lists(
    classes: int = 3, each: tuple[int, int, int] = (3, 1, 2), domains: int = 0
) -> DatasetBase:
    """Three lists whose images lie nowhere."""
    parts: dict[str, list[Datum]] = {}
    for part, count in zip(PARTS, each, strict=True):
        parts[part] = [
            Datum(f"/nowhere/{part}/{c}/{i}.png", c, i % domains if domains else 0, f"class {c}",
                  f"{part}/{c}/{i}.png")
            for c in range(classes) for i in range(count)
        ]
    names = [f"domain {d}" for d in range(domains)]
    return DatasetBase(*parts.values(), name="Mine", domain_names=names, notes=["a note"])


def hashes_of(data: DatasetBase) -> list[str]:
    return [hashlib.sha256(d.key.encode()).hexdigest() for d in data.all()]


def about_of(data: DatasetBase, bad: tuple[int, int, int] = (0, 0, 0), **more: Any) -> About:
    said: dict[str, Any] = {
        "name": data.name, "settings": {"DATASET.NAME": data.name, "DATASET.FORMAT": "folders"},
        "classnames": data.classnames, "domains": data.domain_names,
        "sizes": [len(data.parts[p]) for p in PARTS], "unreadable": list(bad), "notes": data.notes,
        "cut_seed": -1, "split": split_digest(data), "images": hash_images(hashes_of(data)),
        "backbone": "tiny", "weights": "embedded", "digest": "d" * 64, "width": WIDTH,
        "transform": TRANSFORM, "numerics": "torch.float32 fast cpu", "batch": 16,
        "dtype": "float32",
    }
    return About(**said | more)


def make_pack(
    path: Path, data: DatasetBase | None = None, faults: dict[int, str] | None = None, **more: Any
) -> Path:
    """Write a pack whose row i holds i, i, ...; views: v * 100 more."""
    data, faults = data or lists(), faults or {}
    edges = np.cumsum([0, *(len(data.parts[p]) for p in PARTS)])
    bad = np.histogram(list(faults), edges)[0].tolist() if faults else (0, 0, 0)
    about = about_of(data, tuple(bad), groups=hash_groups(data.all()), **more)
    with write_pack_file(path, about, data.parts, hashes_of(data), faults) as out:
        rows = np.arange(sum(about.rows), dtype=about.dtype)[:, None].repeat(WIDTH, 1)
        out.add(rows)
        for v in range(len(about.views)):
            out.add(rows[: about.rows[0]] + np.asarray(100 * (v + 1), about.dtype))
    return path


def rewritten(source: Path, path: Path, **changes: Any) -> Path:
    """Copy a pack whose header says something else, with a digest that agrees."""
    container = read_container(source)
    about = replace(open_pack(source).about, **changes)
    texts = container.about | vars(about)
    raw = source.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header["__metadata__"]["fedvlm.pack"] = json.dumps(texts)
    return resealed(path, header, raw[8 + length :])


def resealed(path: Path, header: dict[str, Any], tensors: bytes) -> Path:
    """Write a header and tensors with the digest that they have."""
    header["__metadata__"]["sha256"] = "0" * 64
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    raw = struct.pack("<Q", len(text)) + text + tensors
    at = raw.rindex(b'"' + b"0" * 64 + b'"') + 1
    digest = hashlib.sha256(raw).hexdigest().encode()
    path.write_bytes(raw[:at] + digest + raw[at + 64 :])
    return path
