"""What a run takes from a set: its classes, the images drawn, and those left out as broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from yacs.config import CfgNode

from fedvlm.data.datum import PARTS, DatasetBase, IntArray, domains_of, labels_of
from fedvlm.data.fewshot import relabel
from fedvlm.data.fewshot_file import GivenShots
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import find_broken, say_broken
from fedvlm.data.partition.even import domain_number
from fedvlm.data.partition.index_file import partition_from
from fedvlm.data.partition.kinds import (
    candidates,
    canonical_kind,
    drawn_per_client,
    make_partition,
    short_of_shots,
    shots_per_client,
)
from fedvlm.data.partition.spec import Partition, PartitionSpec, Pool


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
        beta_fine=float(cfg.FED.BETA_FINE),
        min_size=cfg.FED.MIN_SIZE,
        classes_per_client=cfg.FED.CLASSES_PER_CLIENT,
        repeat_rate=float(cfg.FED.REPEAT_RATE),
        legacy=cfg.FED.LEGACY,
        shots=cfg.DATASET.NUM_SHOTS,
        val_shots=cfg.DATASET.VAL_SHOTS,
        half=cfg.DATASET.SUBSAMPLE_CLASSES,
        held_out=cfg.FED.HELD_OUT_DOMAIN,
    )


class Setting:
    """A data set cut to the run's classes, less the domain that no client holds.

    Attributes:
        held_out: number of that domain (into ``data.domain_names``), or None.
        full: labels of the whole set, -1 in the held-out domain.
        pool: labels of the run, -1 also for classes that take no part. The other domains are
            numbered anew from 0; ``domain_names`` lists them.
        unseen: positions in ``data.test`` of the held-out domain's images of the run's classes.

    Raises:
        ConfigError: a held-out domain that the set does not have; names those it has.
    """

    def __init__(self, data: DatasetBase, spec: PartitionSpec) -> None:
        self.data = data
        self.held_out = domain_number(spec.held_out, data.domain_names, data.name)
        name = "" if self.held_out is None else data.domain_names[self.held_out]
        self.spec = replace(spec, held_out=name)
        self.map = relabel(data.num_classes, spec.half)
        table = np.full(data.num_classes, -1, dtype=np.int64)
        table[list(self.map)] = list(self.map.values())
        labels = {part: labels_of(data.part(part)) for part in PARTS}
        domains = {part: domains_of(data.part(part)) for part in PARTS}
        out = -1 if self.held_out is None else self.held_out
        self.unseen = np.flatnonzero((domains["test"] == out) & (table[labels["test"]] >= 0))
        names = list(data.domain_names)
        if self.held_out is not None:
            seen = {part: domains[part] != out for part in PARTS}
            labels = {part: np.where(seen[part], labels[part], -1) for part in PARTS}
            table = np.append(table, -1)  # label -1 stays -1
            domains = {p: np.where(seen[p], d - (d > out), -1) for p, d in domains.items()}
            names.pop(self.held_out)
        self.full = Pool(labels, data.num_classes, domains, names, data.classnames)
        run = {part: table[labels[part]] for part in PARTS}
        self.pool = Pool(run, len(self.map), domains, names, self.classnames)

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
        self._lines: list[str] = []  # broken images not yet told
        test, mine = setting.full.labels["test"], setting.pool.labels["test"]
        run = np.flatnonzero(mine >= 0)
        new = np.flatnonzero((mine < 0) & (test >= 0)) if new_half else run[:0]
        tests = {"test": np.concatenate([run, new, setting.unseen])}
        bad = self._broken(tests, all_drawn=False)["test"]
        self.test = without(run, bad)
        self.new_test = without(new, bad)
        self.unseen = without(setting.unseen, bad)
        if not len(self.test) or (new_half and len(test) and not len(self.new_test)):
            what = "test images of the run's classes" if not len(self.test) else "new test images"
            self.notes.append(f"{setting.data.name}: there are no {what}")

    def partition(self, given: GivenShots | None = None) -> Partition:
        """Draw (or take the ``given`` shots), leave out what does not decode, deal."""
        setting, spec = self.setting, self.setting.spec
        if drawn_per_client(spec):
            whole = shots_per_client(setting.pool, spec)
            self.notes += short_of_shots(setting.pool, whole, spec)
            bad = self._broken({p: whole.used()[p] for p in ("train", "val")})
            bad["test"] = self._not_tested()
            return whole.without(bad)
        if given is not None:
            picked = given.of_run(setting.pool)
            self.notes.append(given.note)
        else:
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
        self.notes.append(
            f"partition read from {where}; the partition keys of FED and DATA_SEED do not change it"
        )
        return whole.without(bad)

    def _not_tested(self) -> set[int]:
        every = range(len(self.setting.pool.labels["test"]))
        return set(every) - set(self.test.tolist())

    def _broken(
        self, positions: Mapping[str, IntArray], all_drawn: bool = True
    ) -> dict[str, set[int]]:
        """Return the positions that do not decode.

        They are counted and named, or refused, when all that the run uses is drawn: one message
        names those of the test list and those of the clients.
        """
        lists = {p: [self.setting.data.part(p)[i] for i in at] for p, at in positions.items()}
        places, lines = find_broken(lists, self.records)
        self._lines += lines
        found: dict[str, set[int]] = {part: set() for part in PARTS}
        for part, bad in places.items():
            found[part] = {int(positions[part][i]) for i in bad}
            self.skipped += [lists[part][i].key for i in bad]
        if all_drawn:
            self.notes += say_broken(self.setting.data.name, self._lines, self.policy)
            self._lines = []
        return found


def without(positions: IntArray, bad: set[int]) -> IntArray:
    return np.sort(positions[~np.isin(positions, list(bad))]) if bad else np.sort(positions)
