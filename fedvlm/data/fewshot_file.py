"""DATASET.FEWSHOT_FILE: the shots a file names, instead of drawn ones.

Two kinds are read: CoOp's ``split_fewshot/shot_<k>-seed_<s>.pkl`` (``{"train": [Datum, ...],
"val": [...]}``, through the restricted unpickler) and JSON of the same shape with relative paths
or ``[path, label, class name]`` rows. CoOp's paths are absolute ones of the machine that wrote
them, so an image is found by the longest end of its path that the set knows; its label must agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.core.files import user_path
from fedvlm.data.catalog import dataset_info
from fedvlm.data.datum import DatasetBase, Datum, IntArray
from fedvlm.data.layouts import layouts_of
from fedvlm.data.locate import explain_refusals, listing, read_json_file
from fedvlm.data.partition.kinds import draws_per_client
from fedvlm.data.partition.spec import ImagePool, PartitionSpec
from fedvlm.data.untrusted.pickles import PickledObject, load_restricted

_PARTS = ("train", "val")
_BY_DOMAIN = "domain_dirichlet"  # draws its shots in each domain


@dataclass(frozen=True)
class ShotList:
    """The images a few-shot file names.

    Attributes:
        positions: by part, sorted positions into the set's lists.
        note: for the run's notes.
    """

    positions: dict[str, IntArray]
    note: str

    def of_run(self, pool: ImagePool) -> dict[str, IntArray]:
        """Return the positions whose class (and domain) takes part in the run."""
        return {p: at[pool.labels[p][at] >= 0] for p, at in self.positions.items()}


@explain_refusals()
def read_shots(
    cfg: CfgNode, data: DatasetBase, full: ImagePool, spec: PartitionSpec
) -> ShotList:
    """Return the shots that DATASET.FEWSHOT_FILE names.

    Args:
        full: labels and domains of the whole set, -1 in a held-out domain.

    Raises:
        ConfigError: together with keys that draw otherwise.
        DataError: the file is missing or malformed, names an image that the set's list of that
            part lacks, a wrong label, an image twice, or another number of shots.
    """
    name = cfg.DATASET.FEWSHOT_FILE
    if cfg.FED.INDEX_FILE:
        raise ConfigError("DATASET.FEWSHOT_FILE and FED.INDEX_FILE both say which images are used; "
                          "drop one of them")
    if spec.shots < 0:
        raise ConfigError("DATASET.FEWSHOT_FILE needs DATASET.NUM_SHOTS, the images per class that "
                          "it holds, not -1")
    if draws_per_client(spec):
        raise ConfigError(f"DATASET.FEWSHOT_FILE: with FED.PARTITION {spec.kind} every client "
                          "draws its own shots, so no one file can name them; take disjoint or "
                          "dirichlet")
    path = _find(name, cfg, data.name)
    content = _content(path)
    positions = {
        part: _positions(content.get(part, []), data, part, f"{path}: {part}") for part in _PARTS
    }
    _check_count(positions, full, spec, path)
    return ShotList(positions, f"shots read from {path.name}, not drawn by the data seed")


def _find(name: str, cfg: CfgNode, set_name: str) -> Path:
    """Return the file: below the set's folder, else as a path of its own."""
    root, info = user_path(cfg.DATASET.ROOT), dataset_info(set_name)
    folders = [cfg.DATASET.DIR] if cfg.DATASET.DIR else []
    folders += [layout.folder for layout in layouts_of(info)] if info and not folders else []
    places = dict.fromkeys([*(root / f / name for f in folders), user_path(name)])
    for path in places:
        if path.is_file():
            return path
    parents = (p.parent for p in places if p.parent.is_dir())
    near = did_you_mean(Path(name).name, [n for parent in parents for n in listing(parent)])
    raise DataError("DATASET.FEWSHOT_FILE is missing: looked for "
                    f"{' and '.join(map(str, places))}{near}")


def _content(path: Path) -> dict[str, Any]:
    pickled = path.suffix.lower() in (".pkl", ".pickle")
    content = load_restricted(path, objects=True) if pickled else read_json_file(path)
    lists = isinstance(content, dict) and all(
        isinstance(content.get(part, []), list | tuple) for part in _PARTS
    )
    if not lists or not content.get("train"):
        raise DataError(f"{path}: a few-shot file is an object with lists under train and val")
    return dict(content)


def _positions(rows: Sequence[Any], data: DatasetBase, part: str, where: str) -> IntArray:
    items = data.parts[part]
    by_key = _keys(items)
    positions: list[int] = []
    for n, row in enumerate(rows):
        key, label = _row(row, f"{where}[{n}]")
        position = _match(key, by_key)
        if position is None:
            others = (other for other in ("train", "val", "test") if other != part)
            holders = [o for o in others if _match(key, _keys(data.parts[o])) is not None]
            hint = f"; it is in the {holders[0]} list" if holders else ""
            raise DataError(f"{where}[{n}]: '{key}' is not in the {part} list of {data.name}{hint};"
                            " the file was made of another split")
        if label is not None and label != items[position].label:
            raise DataError(f"{where}[{n}]: '{key}' has label {label} there but "
                            f"{items[position].label} in {data.name}; the file was made of another "
                            "split")
        positions.append(position)
    if len(set(positions)) != len(positions):
        twice = next(i for i, n in Counter(positions).items() if n > 1)
        raise DataError(f"{where}: '{items[twice].key}' is named twice")
    return np.asarray(sorted(positions), dtype=np.int64)


def _keys(items: Sequence[Datum]) -> dict[str, int]:
    """Return the position of each image by its key."""
    return {datum.key: i for i, datum in enumerate(items)}


def _match(key: str, by_key: dict[str, int]) -> int | None:
    """Return the position of a relative path, or of the longest known end of an absolute one."""
    text = key.replace("\\", "/")
    parts = [p for p in text.split("/") if p not in ("", ".")]
    absolute = text.startswith("/") or text[1:2] == ":" or ".." in parts
    ends = ("/".join(parts[start:]) for start in range(len(parts) if absolute else 1))
    return next((by_key[end] for end in ends if end in by_key), None)


def _row(row: Any, where: str) -> tuple[str, int | None]:
    """Return the path and, where the row has one, the label."""
    path, label = row, None
    if isinstance(row, PickledObject):
        fields = row.fields
        path, label = (fields.get(f"_{n}", fields.get(n)) for n in ("impath", "label"))
    elif isinstance(row, list | tuple) and len(row) >= 2:
        path, label = row[0], row[1]
    whole = label is None or (isinstance(label, int | np.integer) and not isinstance(label, bool))
    if not isinstance(path, str) or not path or not whole or (label is None and row is not path):
        raise DataError(f"{where}: a row is a path, [path, label, class name], or CoOp's Datum")
    return path, None if label is None else int(label)


def _check_count(
    positions: dict[str, IntArray], full: ImagePool, spec: PartitionSpec, path: Path
) -> None:
    """Refuse another number of shots than the config says; a class may have too few images."""
    config = {"train": ("DATASET.NUM_SHOTS", spec.shots)}
    if spec.val_shots >= 0:
        config["val"] = ("DATASET.VAL_SHOTS", spec.val_shots)
    for part, (key, shots) in config.items():
        groups = _groups(full, part, spec.kind == _BY_DOMAIN)
        shot_counts = Counter(int(groups[i]) for i in positions[part])
        for group, size in Counter(groups[groups >= 0].tolist()).items():
            if shot_counts[group] != min(shots, size):
                name = full.class_name(group % full.num_classes)
                raise DataError(f"{path}: {shot_counts[group]} {part} image(s) of class {name} "
                                f"where {key} {shots} asks for {min(shots, size)}; set {key} to "
                                "what the file holds")


def _groups(full: ImagePool, part: str, by_domain: bool) -> IntArray:
    """Return the group ``[n]`` each image is drawn in: its class, or (domain, class); -1 none."""
    labels = full.labels[part]
    if not by_domain:
        return labels
    return np.where(labels >= 0, full.domains[part] * full.num_classes + labels, -1)
