"""A site file, ``fedvlm-site/1``: images and labels of the clients at one place, and no others'.

JSON: ``dataset``, ``classnames`` (the federation's, by label), ``templates`` and ``clients``: by id
the lists ``train``, ``val`` and ``test`` of ``[path below the folder, label]``, with the hash of it
all. Whoever loads it opens these images and nothing else; ids are those of the whole federation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from yacs.config import CfgNode

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datum import PARTS, Datum, labels_of
from fedvlm.data.draw import spec_of
from fedvlm.data.federated import ClientSplit, FederatedData
from fedvlm.data.formats.coop_split import read_json
from fedvlm.data.image_records import records_of
from fedvlm.data.locate import check_relative
from fedvlm.data.partition.index_file import canonical_hash

FORMAT = "fedvlm-site/1"
_HASH = "sha256"
Lists = dict[str, list[tuple[str, int]]]  # part -> (path, label)


@dataclass(frozen=True)
class SiteFile:
    """What a site file says.

    Attributes:
        dataset: name of the set.
        classnames: by label.
        templates: prompt templates.
        clients: by id, ascending.
    """

    dataset: str
    classnames: list[str]
    templates: list[str]
    clients: dict[int, Lists] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        body = {
            "format": FORMAT, "dataset": self.dataset, "classnames": self.classnames,
            "templates": self.templates,
            "clients": {str(c): {p: [list(row) for row in lists[p]] for p in PARTS}
                        for c, lists in sorted(self.clients.items())},
        }
        files.write_text(path, json.dumps(body | {_HASH: canonical_hash(body)}, indent=1) + "\n")

    def load(self, cfg: CfgNode, folder: Path) -> FederatedData:
        """Return these clients' images below ``folder``; the other clients have none here.

        Raises:
            ConfigError: a client beyond ``FED.CLIENTS``.
            DataError: images that are not there.
        """
        count = int(cfg.FED.CLIENTS)
        beyond = [c for c in self.clients if c >= count]
        if beyond:
            raise ConfigError(
                f"the site file has client {beyond[0]}, and FED.CLIENTS {count} are 0 to "
                f"{count - 1}"
            )
        samples: list[Datum] = []
        none = np.zeros(0, np.int64)
        parts = {c: dict.fromkeys(PARTS, none) for c in range(count)}
        for client, lists in self.clients.items():
            for part in PARTS:
                first = len(samples)
                samples += [
                    Datum(str(folder / path), label, 0, self.classnames[label], path)
                    for path, label in lists[part]
                ]
                parts[client][part] = np.arange(first, len(samples), dtype=np.int64)
        lost = [d.key for d in samples if not Path(d.impath).is_file()]
        if lost:
            raise DataError(
                f"{len(lost)} of {len(samples)} images of the site file are not below '{folder}', "
                f"the first '{lost[0]}'"
            )
        return FederatedData(
            self.dataset, samples, list(self.classnames), [], list(self.templates),
            [ClientSplit(p["train"], p["val"], p["test"]) for p in parts.values()], none, none,
            labels_of(samples), np.zeros(len(samples), np.int64), [], spec_of(cfg), [],
            canonical_hash(sorted(map(str, self.clients))),
            [f"a site's own data: {len(self.clients)} of {count} clients"],
            records_of(samples, cfg),
        )


def cut(data: FederatedData, clients: Sequence[int]) -> SiteFile:
    """Return the site file of some clients of a whole set: to try a federation on one machine."""
    def rows(indices: Sequence[int]) -> list[tuple[str, int]]:
        return [(data.samples[i].key, int(data.labels[i])) for i in indices]

    lists = {c: {p: rows(getattr(data.clients[c], p)) for p in PARTS} for c in sorted(clients)}
    return SiteFile(data.name, list(data.classnames), list(data.templates), lists)


def read_site(path: Path) -> SiteFile:
    """Return what a site file says.

    Raises:
        DataError: unreadable, of another format, changed, or malformed; one sentence.
    """
    if not path.is_file():
        raise DataError(f"there is no site file '{path}'")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"'{path}' is not a site file of format {FORMAT}")
    body = {key: value for key, value in content.items() if key != _HASH}
    if canonical_hash(body) != content.get(_HASH):
        raise DataError(f"'{path}': its content does not match its sha256; it was changed or cut")
    names, templates, clients = (body.get(k) for k in ("classnames", "templates", "clients"))
    if not (_texts(names) and _texts(templates) and isinstance(body.get("dataset"), str)):
        raise DataError(f"'{path}': dataset, classnames and templates are texts")
    if not isinstance(clients, dict) or not clients or not all(map(str.isdecimal, clients)):
        raise DataError(f"'{path}': clients are named by their numbers")
    return SiteFile(body["dataset"], list(names or ()), list(templates or ()), {
        int(c): _lists(f"'{path}': client {c}", clients[c], len(names or ()))
        for c in sorted(clients, key=int)
    })


def _lists(who: str, lists: Any, classes: int) -> Lists:
    if not isinstance(lists, Mapping) or set(lists) != set(PARTS):
        raise DataError(f"{who} has {', '.join(PARTS)}, no more and no less")
    out: Lists = {}
    for part in PARTS:
        if not isinstance(lists[part], list):
            raise DataError(f"{who}: {part} is a list of [path, label]")
        out[part] = [_row(f"{who}, {part}", row, classes) for row in lists[part]]
    return out


def _row(where: str, row: Any, classes: int) -> tuple[str, int]:
    if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and row[0]):
        raise DataError(f"{where}: an image is [path, label]")
    path, label = row
    if type(label) is not int or not 0 <= label < classes:
        raise DataError(f"{where}: the label of '{path}' is none of 0 to {classes - 1}")
    check_relative(path, where)
    return path, label


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)
