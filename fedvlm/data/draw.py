"""What a run takes from a set: its classes, the images drawn, and those left out as broken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from yacs.config import CfgNode

from fedvlm.data.datum import PARTS, DatasetBase, IntArray, domains_of, labels_of
from fedvlm.data.fewshot import relabel
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import check_decodes
from fedvlm.data.index_file import partition_from
from fedvlm.data.partition import Partition, PartitionSpec, Pool
from fedvlm.data.plan import (
    candidates,
    canonical_kind,
    drawn_per_client,
    make_partition,
    shots_per_client,
)
from fedvlm.errors import DataError

_NAMED = 10  # broken images named in a note or message


def spec_of(cfg: CfgNode) -> PartitionSpec:
    """Return the partition the config asks for.

    Raises:
        ConfigError: unknown kind or a value out of range.
    """
    return PartitionSpec(
        kind=canonical_kind(cfg.FED.PARTITION),
        clients=cfg.FED.CLIENTS,
        seed=cfg.DATA_SEED,
        beta=float(cfg.FED.BETA),
        min_size=cfg.FED.MIN_SIZE,
        repeat_rate=float(cfg.FED.REPEAT_RATE),
        legacy=cfg.FED.LEGACY,
        shots=cfg.DATASET.NUM_SHOTS,
        val_shots=cfg.DATASET.VAL_SHOTS,
        half=cfg.DATASET.SUBSAMPLE_CLASSES,
    )


class Setting:
    """A data set cut to the run's classes."""

    def __init__(self, data: DatasetBase, spec: PartitionSpec) -> None:
        self.data, self.spec = data, spec
        self.map = relabel(data.num_classes, spec.half)
        table = np.full(data.num_classes, -1, dtype=np.int64)
        table[list(self.map)] = list(self.map.values())
        labels = {part: labels_of(data.part(part)) for part in PARTS}
        domains = {part: domains_of(data.part(part)) for part in PARTS}
        self.full = Pool(labels, data.num_classes, domains, data.domain_names)
        run = {part: table[labels[part]] for part in PARTS}
        self.pool = Pool(run, len(self.map), domains, data.domain_names)

    @property
    def classnames(self) -> list[str]:
        return [self.data.classnames[old] for old in self.map]

    @property
    def new_map(self) -> dict[int, int]:
        """Old to new label of the classes that a base run does not train."""
        rest = [old for old in range(self.data.num_classes) if old not in self.map]
        return {old: fresh for fresh, old in enumerate(rest)}


class Drawn:
    """The positions a run uses, and those left out because they do not decode."""

    def __init__(
        self, setting: Setting, records: ImageRecords, policy: str, new_half: bool
    ) -> None:
        self.setting, self.records, self.policy = setting, records, policy
        self.notes: list[str] = []
        self.skipped: list[str] = []
        test = setting.full.labels["test"]
        run = np.flatnonzero(setting.pool.labels["test"] >= 0)
        new = np.flatnonzero(setting.pool.labels["test"] < 0) if new_half else run[:0]
        bad = self._broken({"test": np.concatenate([run, new])})["test"]
        self.test = without(run, bad)
        self.new_test = without(new, bad)
        if not len(self.test) or (new_half and len(test) and not len(self.new_test)):
            what = "test images of the run's classes" if not len(self.test) else "new test images"
            self.notes.append(f"{setting.data.name}: there are no {what}")

    def partition(self) -> Partition:
        """Draw, leave out what does not decode, deal."""
        setting, spec = self.setting, self.setting.spec
        if drawn_per_client(spec):
            whole = shots_per_client(setting.pool, spec)
            bad = self._broken({p: whole.used()[p] for p in ("train", "val")})
            bad["test"] = self._not_tested()
            return whole.without(bad)
        picked = candidates(setting.full, setting.pool, spec)
        bad = self._broken({p: picked[p] for p in ("train", "val")})
        use = {p: without(picked[p], bad[p]) for p in ("train", "val")} | {"test": self.test}
        return make_partition(setting.pool.select(use), spec).through(use)

    def from_file(self, content: Mapping[str, Any], where: str) -> Partition:
        """Take the clients of an index file, leave out what does not decode."""
        setting = self.setting
        inside = {p: np.flatnonzero(setting.pool.labels[p] >= 0) for p in PARTS}
        lists = {p: [setting.data.part(p)[i] for i in inside[p]] for p in PARTS}
        whole = partition_from(content, lists, setting.classnames, where).through(inside)
        bad = self._broken({p: whole.used()[p] for p in ("train", "val")})
        bad["test"] = self._not_tested()
        self.notes.append(f"partition read from {where}; the partition keys of FED are not used")
        return whole.without(bad)

    def _not_tested(self) -> set[int]:
        every = range(len(self.setting.pool.labels["test"]))
        return set(every) - set(self.test.tolist())

    def _broken(self, positions: Mapping[str, IntArray]) -> dict[str, set[int]]:
        """Return the positions that do not decode; count and name them, or refuse."""
        found: dict[str, set[int]] = {part: set() for part in PARTS}
        lines = []
        for part, where in positions.items():
            items = [self.setting.data.part(part)[i] for i in where]
            broken = self.records.find_broken(items, check_decodes)
            found[part] = {int(where[i]) for i in broken}
            self.skipped += [items[i].key for i in broken]
            lines += [f"{items[i].key} ({reason})" for i, reason in broken.items()]
        if lines:
            named = "; ".join(lines[:_NAMED]) + ("; ..." if len(lines) > _NAMED else "")
            if self.policy == "refuse":
                raise DataError(
                    f"{self.setting.data.name}: {len(lines)} image(s) do not decode: {named}; "
                    "replace them, or set DATASET.ON_CORRUPT skip"
                )
            self.notes.append(f"{len(lines)} image(s) do not decode and are left out: {named}")
        return found


def without(positions: IntArray, bad: set[int]) -> IntArray:
    return np.sort(positions[~np.isin(positions, list(bad))]) if bad else np.sort(positions)
