"""Data that a Python program holds: one dataset per client, or one for all of them.

``data=[a, b]`` and ``{"north": a, "south": b}`` are clients: each dataset is a domain of the set,
named as the client, and FED.PARTITION ``domain`` gives it to its client whole. One dataset is a
pool, which FED.PARTITION deals. A tuple ``(train, test)`` or ``(train, val, test)``, or a mapping
of these words (``datasets.DatasetDict``), gives the parts of a client or of the pool; where there
are training images only, DATASET.TEST_SHARE draws test images from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.config.option import Value
from fedvlm.core.errors import ConfigError, DataError, fold
from fedvlm.core.progress import Progress
from fedvlm.core.spelling import name_fault, show_name
from fedvlm.data.datasets import MEMORY_FORMAT, refuse_one_class, refuse_untestable
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.formats.parts import PART_NAMES, USUAL_SHARE, complete
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import first_names
from fedvlm.data.memory.samples import Columns, SamplePicture, Samples, is_sample, is_table
from fedvlm.data.own.add import default_sharing

PARTITION, CLIENTS, HELD_OUT = "FED.PARTITION", "FED.CLIENTS", "FED.HELD_OUT_DOMAIN"
USUAL_NAME = MEMORY_FORMAT
Parts = dict[str, Samples]


class MemorySet:
    """A data set in memory, looked at but not read.

    Args:
        data: see the module.
        classnames: by label; None takes them from the datasets (``ClassLabel`` features,
            torchvision's ``classes``).
        columns: names of image and label in rows that are mappings or tables.
        name: of the set, in results and in the run folder's path.
        given: config keys that the user sets, as typed.

    Attributes:
        keys: config keys that say what the set is and how clients share it.
        sentence, decided: how the data are read, for the screen.
        named: whether the clients have names of the user's.

    Raises:
        ConfigError: class names or columns that are missing or do not fit, or keys in ``given``
            that another way of dealing than the datasets' own needs.
        DataError: what is no dataset, or is empty; the client is named.
    """

    origin = "the data in memory"

    def __init__(
        self, data: Any, classnames: Sequence[str] | None = None,
        columns: Sequence[Any] | None = None, name: str = "",
        given: Mapping[str, Value] | None = None,
    ) -> None:
        self.name = name or USUAL_NAME
        if not isinstance(self.name, str):
            raise ConfigError(f"name must be a string, not {name!r}")
        where = _columns(columns)
        self._pooled, members = _members(data)
        self.named = not self._pooled and isinstance(data, Mapping)
        self._members = {n: _parts(value, n, where) for n, value in members.items()}
        self.classnames = self._classes(classnames)
        self.keys, decided = self._sharing(dict(given or {}))
        self.decided = tuple(decided)

    @property
    def sentence(self) -> str:
        """How the data are read, in one line."""
        sizes = {p: sum(len(m[p]) for m in self._members.values() if p in m) for p in PARTS}
        whose = "one dataset" if self._pooled else (
            f"{len(self._members)} clients ({first_names(list(self._members))})"
        )
        return (f"{self.name}: data in memory: {whose}, {len(self.classnames)} classes "
                f"({first_names(self.classnames)}), {'/'.join(f'{n:,}' for n in sizes.values())} "
                f"images in {'/'.join(PARTS)}")

    def read(self, cfg: CfgNode, progress: Progress | None = None) -> DatasetBase:
        """Read all labels and return the set's lists; images follow when they are wanted.

        Args:
            cfg: DATASET.TEST_SHARE and DATA_SEED.
            progress: reports how many rows are read.

        Raises:
            DataError: a label that is none or out of range, an image that is none (client and
                index are named), no test images, one class only, or most classes without a test
                image.
        """
        for key in ("CLIENTS_BY", "GROUPS"):
            if cfg.DATASET.get(key, ""):
                raise ConfigError(
                    f"DATASET.{key}: data in memory have no columns: give a dataset for each "
                    "client (data={'a': ..., 'b': ...}), or a table with images='list.csv'"
                )
        info = CopyInfo(self.name, Path(), test_share=float(cfg.DATASET.TEST_SHARE),
                        seed=int(cfg.DATA_SEED))
        for member, parts in self._members.items():
            if len(parts) == 1 and not info.test_share:
                raise DataError(
                    f"{self._of(member)} has no test images: give (train, test) for train, or let "
                    f"test_share={USUAL_SHARE} draw that share of each class by data_seed"
                )
        total = sum(len(samples) for parts in self._members.values() for samples in parts.values())
        done = itertools.count(1)

        def count() -> None:
            if progress is not None:
                progress("reading the data", next(done), total)

        lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
        notes: list[str] = []
        for number, (member, parts) in enumerate(self._members.items()):
            rows = {p: self._data(parts, p, member, number, count) for p in PARTS}
            whole, said = complete(rows, info, self.name, "" if self._pooled else member)
            notes += said
            for part in PARTS:
                lists[part] += whole[part]
        data = DatasetBase.of(lists, [] if self._pooled else list(self._members), notes)
        data.name = self.name
        data.classnames, data.lab2cname = list(self.classnames), dict(enumerate(self.classnames))
        refuse_one_class(data, or_else="")
        refuse_untestable(data)
        return data

    def _data(
        self, parts: Parts, part: str, member: str, domain: int, count: Callable[[], None]
    ) -> list[Datum]:
        """Return one part's images with their labels."""
        samples = parts.get(part)
        if samples is None:
            return []
        head = f"{part}/" if self._pooled else f"{member}/{part}/"
        rows = []
        for i, label in enumerate(samples.labels(self.classnames)):
            rows.append(Datum(
                "", label, domain, self.classnames[label], f"{head}{i:07d}",
                SamplePicture(samples, i),
            ))
            count()
        return rows

    def _classes(self, classnames: Sequence[str] | None) -> tuple[str, ...]:
        """Return the class names, given or the datasets' own."""
        if classnames is None:
            return self._own_classes()
        if isinstance(classnames, str) or not all(isinstance(n, str) for n in classnames):
            raise ConfigError("classnames must be a list of strings, one for each label")
        names = tuple(classnames)
        if len(names) < 2:
            raise ConfigError(f"classnames has {len(names)} name(s); a classifier needs two")
        for label, name in enumerate(names):
            if fault := name_fault(name):
                raise ConfigError(
                    f"classnames: the name of class {label}, {show_name(name)}, {fault}"
                )
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ConfigError(f"classnames: two classes are called '{twice[0]}'")
        return names

    def _own_classes(self) -> tuple[str, ...]:
        known = {s.where: s.classnames for parts in self._members.values() for s in parts.values()}
        lacking = [where for where, names in known.items() if names is None]
        if lacking:
            raise ConfigError(
                f"{lacking[0]}: the dataset does not name its classes; give them by label: "
                "classnames=['a cat', 'a dog', ...]"
            )
        (first, names), *others = known.items()
        for where, other in others:
            if other != names:
                raise ConfigError(
                    f"{first} and {where} do not name the same classes "
                    f"({first_names(names or ())}; {first_names(other or ())}): bring their "
                    "labels into one order and give classnames=[...]"
                )
        return self._classes(names)

    def _sharing(self, given: Mapping[str, Value]) -> tuple[dict[str, Value], list[str]]:
        """Return the config keys of the set, and notes on what they decide."""
        keys: dict[str, Value] = {
            "DATASET.NAME": self.name, "DATASET.FORMAT": MEMORY_FORMAT, "DATASET.NUM_SHOTS": -1,
        }
        if self._pooled:
            images = sum(len(parts["train"]) for parts in self._members.values())
            more, notes = default_sharing(0, len(self.classnames), images, given)
            more = {key: value for key, value in more.items() if key not in given}
            return keys | more, notes if PARTITION in more else []
        number = len(self._members)
        kind = given.get(PARTITION, "domain")
        if fold(str(kind)) != "domain":
            raise ConfigError(
                f"partition={kind!r} deals one dataset, and data has one for each of {number} "
                "clients: give data=torch.utils.data.ConcatDataset([...]), or drop partition"
            )
        free = number - bool(given.get(HELD_OUT))  # one domain is left out, and has no client
        users = given.get(CLIENTS, free)
        if str(users) != str(free):
            raise ConfigError(f"num_users={users}, and data has {free} clients: drop num_users")
        return keys | {PARTITION: "domain", CLIENTS: free}, [
            f"one client per dataset: FED.PARTITION domain, FED.CLIENTS {free}"
        ]

    def _of(self, member: str) -> str:
        return f"{self.name}: the data" if self._pooled else f"{self.name}: client '{member}'"


def _members(data: Any) -> tuple[bool, dict[str, Any]]:
    """Return whether there is one pool, and every client's data by name (the pool's: "")."""
    if is_table(data) or _is_parts(data) or isinstance(data, tuple) or _is_samples(data):
        return True, {"": data}
    if isinstance(data, Mapping):
        return False, _named(data)
    if isinstance(data, list):
        return False, _named({f"client-{i}": value for i, value in enumerate(data)})
    return True, {"": data}


def _named(clients: Mapping[Any, Any]) -> dict[str, Any]:
    named = {str(name): value for name, value in clients.items()}
    if not named:
        raise DataError("data has no client: give a dataset for each, or one to be dealt")
    for name in named:
        if (fault := name_fault(name)) or "/" in name:
            raise ConfigError(f"data: the client's name {show_name(name)} {fault or 'holds a /'}")
    folded = {fold(name): name for name in named}
    if len(folded) < len(clients):
        raise ConfigError("data: two clients have the same name (case, - and _ aside)")
    return named


def _is_parts(data: Any) -> bool:
    """Tell whether it is a mapping of parts, ``datasets.DatasetDict`` for one."""
    return isinstance(data, Mapping) and bool(data) and all(
        str(name) in PART_NAMES for name in data
    )


def _is_samples(data: Any) -> bool:
    return isinstance(data, list | tuple) and bool(data) and is_sample(data[0])


def _parts(value: Any, member: str, columns: Columns | None) -> Parts:
    """Return the datasets of a client, or of the pool, by part."""
    whose = f"client '{member}', " if member else "data, "
    if _is_parts(value):
        parts = {PART_NAMES[str(name)]: one for name, one in value.items()}
    elif isinstance(value, tuple) and not _is_samples(value):
        if len(value) not in (2, len(PARTS)):
            raise DataError(
                f"{whose}a tuple is (train, test) or (train, val, test), and this one has "
                f"{len(value)} parts; clients come as a list or a mapping"
            )
        parts = dict(zip(PARTS if len(value) == len(PARTS) else ("train", "test"), value,
                         strict=True))
    else:
        parts = {"train": value}
    samples = {
        p: Samples(parts[p], f"{whose}{p}", columns) for p in PARTS if parts.get(p) is not None
    }
    if "train" not in samples:
        raise DataError(f"{whose}there is no training part")
    return samples


def _columns(columns: Sequence[Any] | None) -> Columns | None:
    if columns is None:
        return None
    if isinstance(columns, str) or len(columns) != 2:
        raise ConfigError("columns names two: columns=('image', 'label')")
    return columns[0], columns[1]
