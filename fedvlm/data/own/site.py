"""A site file, ``fedvlm-site/1``: images and labels of the clients at one place, and no others'.

JSON: ``dataset``, ``classnames`` (the federation's, by label), ``templates`` and ``clients``: by id
the lists ``train``, ``val`` and ``test`` of ``[path below the folder, label]``, with the hash of it
all. Whoever loads it opens these images and nothing else; ids are those of the whole federation.
``public`` may be there, test images of all classes that anybody may have; a server's file has them,
images of its own (``server``), or nothing but the names, and no clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from yacs.config import CfgNode

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datum import PARTS, Datum, labels_of, refuse_client_texts, refuse_targets
from fedvlm.data.draw import spec_of
from fedvlm.data.federated import ClientSplit, FederatedData
from fedvlm.data.image_records import records_of
from fedvlm.data.locate import check_relative
from fedvlm.data.partition.index_file import canonical_hash, read_sealed, seal

SITE_FORMAT = "fedvlm-site/1"
_OF_PUBLIC = ("global", "base_all", "base_other")
ImageList = list[tuple[str, int]]  # (path, label)
_Lists = dict[str, ImageList]  # by part
GROUPS = ".groups.json"  # beside site.json: site.groups.json
EXTRA = ("public", "server")  # lists that need not be there


@dataclass(frozen=True)
class SiteFile:
    """What a site file says.

    Attributes:
        dataset: name of the set.
        classnames: by label.
        templates: prompt templates.
        clients: by id, ascending.
        public: test images of all classes.
        server: images that a server may train on.
        groups: of images that are in a group (a patient) its name; in a file beside, which no
            message, digest or run reads.
    """

    dataset: str
    classnames: list[str]
    templates: list[str]
    clients: dict[int, _Lists] = field(default_factory=dict)
    public: ImageList = field(default_factory=list)
    server: ImageList = field(default_factory=list)
    groups: Mapping[str, str] = field(default_factory=dict, compare=False)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all, and that of groups; only this user may read them.

        Killed in between, the file of groups has more images than the other and lacks none: a
        patient who is being withdrawn can be named again.
        """
        place, held = path.with_suffix(GROUPS), self.held_groups()
        try:
            known = read_groups(path)
        except DataError:  # damaged: it is written anew
            known = {}
        if {**known, **held} != known:
            files.write_json(place, {**known, **held}, private=True)
        files.write_text(
            path, json.dumps(seal(self._body(), SITE_FORMAT), indent=1) + "\n", private=True)
        if known.keys() - held.keys():
            files.write_json(place, held, private=True)

    def held_groups(self) -> dict[str, str]:
        """Return the groups of the images in the lists."""
        here = set(self.paths()) if self.groups else ()
        return {name: group for name, group in self.groups.items() if name in here}

    @property
    def digest(self) -> str:
        """The hash of all that the file says."""
        return canonical_hash(self._body())

    def _body(self) -> dict[str, Any]:
        extra = {name: getattr(self, name) for name in EXTRA}
        return {
            "format": SITE_FORMAT, "dataset": self.dataset, "classnames": self.classnames,
            "templates": self.templates,
            "clients": {str(c): {p: [list(row) for row in lists[p]] for p in PARTS}
                        for c, lists in sorted(self.clients.items())},
        } | {name: [list(row) for row in rows] for name, rows in extra.items() if rows}

    def paths(self) -> list[str]:
        """Return the paths of all images, each once, in the order of the file."""
        rows = [row for lists in self.clients.values() for part in PARTS for row in lists[part]]
        return list(dict.fromkeys(path for path, _ in [*rows, *self.public, *self.server]))

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

        def take(rows: ImageList) -> np.ndarray:
            first = len(samples)
            samples.extend(
                Datum(str(folder / path), label, 0, self.classnames[label], path)
                for path, label in rows
            )
            return np.arange(first, len(samples), dtype=np.int64)

        none = np.zeros(0, np.int64)
        parts = {c: dict.fromkeys(PARTS, none) for c in range(count)}
        for client, lists in self.clients.items():
            for part in PARTS:
                parts[client][part] = take(lists[part])
        public, server = take(self.public), take(self.server)
        lost = [d.key for d in samples if not Path(d.impath).is_file()]
        if lost:
            raise DataError(
                f"{len(lost)} of {len(samples)} images of the site file are not below '{folder}', "
                f"the first '{lost[0]}'"
            )
        return FederatedData(
            self.dataset, samples, list(self.classnames), [], list(self.templates),
            [ClientSplit(p["train"], p["val"], p["test"]) for p in parts.values()], public, none,
            labels_of(samples), np.zeros(len(samples), np.int64), [], spec_of(cfg), [],
            canonical_hash(sorted(map(str, self.clients))), self._notes(count),
            records_of(samples, cfg), server=server,
        )

    def _notes(self, count: int) -> list[str]:
        whose = f"a site's own data: {len(self.clients)} of {count} clients"
        if not self.clients:
            whose = f"a server without clients' data: {count} clients are at sites"
        bare = f"no public test set is here ({', '.join(_OF_PUBLIC)} have no number)"
        return [whose, f"{len(self.public):,} public test images" if self.public else bare]


@dataclass(frozen=True)
class ServerSet:
    """A coordinator's site file as the data set of its run.

    Attributes:
        keys: config keys that it says.
        sentence: a one-line summary.
    """

    keys: dict[str, Any]
    sentence: str
    decided: tuple[str, ...] = ()
    origin: ClassVar[str] = "the site file"


def server_set(path: Path, images: str) -> ServerSet:
    """Return the config keys in a coordinator's site file.

    Args:
        images: folder of the images that it lists; empty: the file's own.

    Raises:
        DataError: as ``read_site``.
    """
    file = read_site(path)
    keys = {"DATASET.NAME": file.dataset, "DATASET.NUM_SHOTS": -1, "DATASET.ROOT": images}
    return ServerSet(keys, f"{file.dataset}: {len(file.classnames)} classes, "
                     f"{len(file.public):,} public test images; clients' images are at their sites")


def cut_site(data: FederatedData, clients: Sequence[int], public: bool = False) -> SiteFile:
    """Return the site file of some clients of a whole set: to try a federation on one machine.

    Args:
        public: with the set's test images; without clients also with the server's.
    """
    refuse_targets(
        "a site file", sets=data.label_sets is not None, captions=data.captioned,
        unlabelled=any(len(client.unlabelled) for client in data.clients))
    refuse_client_texts("a site file", data.client_templates)

    def rows(indices: Iterable[int]) -> ImageList:
        return [(data.samples[i].key, int(data.labels[i])) for i in indices]

    lists = {c: {p: rows(getattr(data.clients[c], p)) for p in PARTS} for c in sorted(clients)}
    return SiteFile(
        data.name, list(data.classnames), list(data.templates), lists,
        rows(data.global_test) if public else [], [] if clients else rows(data.server),
    )


def read_site(path: Path) -> SiteFile:
    """Return what a site file says.

    Raises:
        DataError: unreadable, of another format, changed, or malformed.
    """
    if not path.is_file():
        raise DataError(f"there is no site file '{path}'")
    body = read_sealed(path, f"'{path}'", "a site file", SITE_FORMAT)
    names, templates, clients = (body.get(k) for k in ("classnames", "templates", "clients"))
    if not (_texts(names) and _texts(templates) and isinstance(body.get("dataset"), str)):
        raise DataError(f"'{path}': dataset, classnames and templates are texts")
    if not isinstance(clients, dict) or not all(map(str.isdecimal, clients)):
        raise DataError(f"'{path}': clients must be named by their numbers")
    count = len(names or ())
    extra = {name: _images(f"'{path}'", name, body.get(name, []), count) for name in EXTRA}
    return SiteFile(body["dataset"], list(names or ()), list(templates or ()), {
        int(c): _lists(f"'{path}': client {c}", clients[c], count)
        for c in sorted(clients, key=int)
    }, extra["public"], extra["server"])


def read_groups(path: Path) -> dict[str, str]:
    """Return the groups of a site file's images by their paths; empty where none were written.

    Raises:
        DataError: the file of groups is damaged.
    """
    return files.read_valid_json(path.with_suffix(GROUPS), lambda held: isinstance(
        held, dict) and all(isinstance(group, str) for group in held.values()),
        "delete it, and make it again (fedvlm site make --groups)") or {}


def _lists(who: str, lists: Any, classes: int) -> _Lists:
    if not isinstance(lists, Mapping) or set(lists) != set(PARTS):
        raise DataError(f"{who} has {', '.join(PARTS)}, no more and no less")
    return {part: _images(who, part, lists[part], classes) for part in PARTS}


def _images(who: str, part: str, rows: Any, classes: int) -> ImageList:
    if not isinstance(rows, list):
        raise DataError(f"{who}: {part} is a list of [path, label]")
    return [_row(f"{who}, {part}", row, classes) for row in rows]


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
