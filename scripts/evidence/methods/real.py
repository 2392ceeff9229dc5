"""Real runs in every fourth cell of the map: FedAvg and Ditto on the clients that the map dealt.

Which cells is decided by a checksum of their names, not by their numbers. The clients of a cell are
written as an index file (FED.INDEX_FILE), the runs are a sweep over the packs of
``images.scanned_pack``, and every client is judged on all test images as its scanner shows them,
by its own class shares, as the map judges heads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from evidence.map.deal import Held, deal
from evidence.map.images import SETS, SHIFTED, Features, read_features, scanned_key, scanned_pack
from evidence.map.map import Key, keys_of, read_rows, rows_file
from fedvlm.core.files import write_text
from fedvlm.data.packs.pack import open_pack
from fedvlm.data.partition.index_file import seal
from fedvlm.report.collect import collect
from fedvlm.runs.bits import BITS, decode_bits
from fedvlm.runs.finished import FinishedRun

SHARE = 4  # every fourth cell
DIGITS = 8  # of a checksum, in the name of a partition
SEED = 1  # the draw of the map that the runs are on
PLAN, RUNS = "drawn.yaml", "drawn"
METHODS = (
    {"name": "FedAvg", "peft": "feature+head"}, {"name": "Ditto", "peft": "feature+head"},
)
COMMON = {
    "rounds": 20, "local-epochs": 2, "batch-size": 32, "views": 1, "shots": -1,
    "eval-every": 1_000_000, "TRAIN.CHECKPOINT_FREQ": 1_000_000, "TEST.PER_IMAGE": True,
    "TEST.REFERENCES": False,
}


def drawn(name: str, size: int) -> list[Key]:
    """Return every fourth cell of a set of ``size`` training images, in the order they are run.

    Cells are ordered by the SHA-256 of set, clients, images, skew and shift; the first quarter is
    taken. Cells that the set has too few images for are among them and stay empty.
    """
    def mark(key: Key) -> str:
        return hashlib.sha256(repr((name, *key[:4])).encode()).hexdigest()

    cells = sorted(keys_of(name, size, SEED), key=mark)
    return cells[: -(-len(cells) // SHARE)]


def word_of(key: Key) -> str:
    """Return the name of a cell: ``10x25-dirichlet0.3``, with ``-shift``."""
    clients, images, skew, shift, _ = key
    return f"{clients}x{images}-{skew.replace(' ', '')}{'-shift' if shift else ''}"


def write_plan(runs: Path, backbone: str) -> Path:
    """Write the index files of all drawn cells and the plan of their runs; return the plan."""
    entries = []
    for name in SHIFTED:
        data = read_features(name, runs)
        dataset = _write_dataset(name, runs)
        for key in drawn(name, len(data.train.labels)):
            held = deal(data, *key)
            if held:
                path = _index_file(runs, name, key)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, json.dumps(index_of(name, data, held, runs)) + "\n")
                entries.append({
                    "name": str(dataset), "label": f"{SETS[name]} {word_of(key)}",
                    "num-users": len(held), "FED.INDEX_FILE": str(path)})
    plan = {"name": "map-drawn", "root": str(runs), "output_dir": str(runs / RUNS),
            "common": COMMON | {"backbone": backbone}, "datasets": entries,
            "trainers": list(METHODS), "seeds": [SEED]}
    write_text(runs / PLAN, yaml.safe_dump(plan, sort_keys=False))
    return runs / PLAN


def _write_dataset(name: str, runs: Path) -> Path:
    """Write the YAML of the set that a pack of scanners is of."""
    about = open_pack(scanned_pack(name, runs)).about
    node: dict[str, Any] = {}
    for key, value in about.settings.items():
        section, _, word = key.partition(".")
        if section == "DATASET":
            node[word] = value
    path = runs / f"{SETS[name]}-scanners.yaml"
    write_text(path, yaml.safe_dump({"DATASET": node}))
    return path


def index_of(name: str, data: Features, held: Sequence[Held], runs: Path) -> dict[str, Any]:
    """Return the clients of a cell as an index file's content, all test images at each client."""
    about = open_pack(scanned_pack(name, runs)).about
    sizes = [len(part.labels) for part in (data.train, data.val, data.test)]
    first = [0, sizes[0], sizes[0] + sizes[1]]
    places = [(one.train, one.val, np.arange(sizes[2])) for one in held]
    clients = [{part: [scanned_key(one.domain, int(at) + start) for at in images]
                for part, images, start in zip(("train", "val", "test"), parts, first, strict=True)}
               for one, parts in zip(held, places, strict=True)]
    return seal({"dataset": about.name, "classnames": list(about.classnames),
                 "spec": {"kind": "iid", "clients": len(held), "seed": SEED}, "clients": clients})


def read_real(runs: Path) -> list[dict[str, Any]]:
    """Return a row for each finished run: the cell's columns, ``method``, the map's metrics.

    ``alone`` is the map's number of the same draw; ``fixed`` that of the method's fixed point.
    """
    several: dict[str, list[FinishedRun]] = {}
    for run in collect([runs / RUNS]).runs if (runs / RUNS).is_dir() else []:
        several.setdefault(_mark(str(run.protocol["partition"])), []).append(run)
    out = []
    for name in SHIFTED if several else ():
        data = read_features(name, runs)
        cells = {_cell(row): row["numbers"] for row in _map_rows(runs, name)}
        for key in drawn(name, len(data.train.labels)):
            path = _index_file(runs, name, key)
            some = several.get(_index_mark(path), []) if path.is_file() else []
            held = deal(data, *key) if some else []
            out += [_row(name, key, run, data, held, cells.get(key[:4], {})) for run in some]
    return out


def _index_file(runs: Path, name: str, key: Key) -> Path:
    return runs / "index" / f"{SETS[name]}-{word_of(key)}.json"


def _mark(partition: str) -> str:
    """Return the digits of an index file's checksum that a partition's name has: its path is kept
    from results."""
    return partition.removeprefix("index-").partition("-")[0]


def _index_mark(path: Path) -> str:
    return str(json.loads(path.read_text(encoding="utf-8"))["sha256"])[:DIGITS]


def _map_rows(runs: Path, name: str) -> Iterator[dict[str, Any]]:
    return (row for row in read_rows(rows_file(runs, name))
            if row["seed"] == SEED and row["numbers"])


def _cell(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["clients"], row["images"], row["skew"], row["shift"]


FIXED = {"FedAvg": "shared", "Ditto": "personal"}  # method -> its fixed point on the map


def _row(
    name: str, key: Key, run: FinishedRun, data: Features, held: Sequence[Held],
    fixed: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Judge a run's clients as ``cell.Score`` does."""
    bits = run.last[BITS]["personal"]
    right = np.array([decode_bits(bits[str(k)]) for k in range(len(held))], dtype=np.float64)
    labels = data.test.labels
    recall = np.stack([right[:, labels == c].mean(1) for c in range(data.classes)], 1)
    own = 100 * (recall * np.stack([one.shares for one in held])).sum(1)
    method = str(run.protocol["trainer"])
    clients, images, skew, shift, seed = key
    return {
        "set": name, "clients": clients, "images": images, "skew": skew, "shift": shift,
        "seed": seed, "method": method, "personal": float(own.mean()),
        "balanced": float(100 * recall.mean()), "worst": float(own.min()),
        "alone": fixed.get("alone", {}).get("personal"),
        "alone_balanced": fixed.get("alone", {}).get("balanced"),
        "fixed": fixed.get(FIXED[method], {}).get("personal"),
        "bytes_up": sum(run.last["bytes_up"].values()) / len(held),
    }
