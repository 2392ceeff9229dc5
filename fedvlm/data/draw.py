"""What a run takes from a data set: its classes, the images drawn, and the clients' shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from yacs.config import CfgNode

from fedvlm.core.errors import DataError
from fedvlm.data.datum import (
    PARTS,
    DatasetBase,
    IntArray,
    domains_of,
    group_numbers,
    labels_of,
)
from fedvlm.data.fewshot import relabel, short_classes
from fedvlm.data.holdout import draw_holdout, remove_positions
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import find_broken, say_broken
from fedvlm.data.partition.even import domain_number
from fedvlm.data.partition.index_file import partition_from
from fedvlm.data.partition.kinds import (
    candidates,
    draws_per_client,
    make_partition,
    shortage_notes,
    shots_per_client,
)
from fedvlm.data.partition.spec import ImagePool, Partition, PartitionSpec

if TYPE_CHECKING:
    from fedvlm.data.fewshot_file import ShotList

MOST_NAMED = 10  # classes or clients that a message lists
_CLIENT_PARTS = ("train", "val")  # of which shots are drawn


def spec_of(cfg: CfgNode) -> PartitionSpec:
    """Return the partition the config asks for.

    Raises:
        ConfigError: a value out of range.
    """
    return PartitionSpec(
        kind=cfg.FED.PARTITION,
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
        server_holdout=int(cfg.DATASET.get("SERVER_HOLDOUT", 0)),
    )


class DatasetDraw:
    """A data set cut to what a run takes: some classes, less the domain that no client holds.

    Made from the lists alone. ``hold_out`` then takes the server's images away,
    ``drop_broken_tests`` looks at those and at the test images, ``partition`` or
    ``partition_from_file`` at those that clients train and validate on.

    Args:
        data: the set, checked.
        spec: what the run asks for; ``spec`` has the held-out domain as the set spells it.
        test_new: whether the classes that a base run does not train are tested too.

    Attributes:
        map, new_map: the set's label to the run's, of the run's classes and of those that a base
            run does not train.
        held_out: number of the held-out domain (into ``data.domain_names``), or None.
        full: labels of the whole set, -1 in the held-out domain.
        pool: labels of the run, -1 also for classes that take no part. The other domains are
            numbered anew from 0; ``domain_names`` lists them.
        test, new_test, unseen: sorted positions in ``data.test`` of the images of the run's
            classes, of the new classes, and of the held-out domain's images of the run's classes.
        server: sorted positions in the training and validation lists of the server's images, of
            the run's classes; empty without ``hold_out``.
        skipped: keys of the images that do not decode.
        notes: what the run's log should say of the draw.

    Raises:
        ConfigError: a held-out domain that the set does not have; names those it has.
    """

    def __init__(self, data: DatasetBase, spec: PartitionSpec, test_new: bool = False) -> None:
        self.data = data
        self.held_out = domain_number(spec.held_out, data.domain_names, data.name)
        name = "" if self.held_out is None else data.domain_names[self.held_out]
        self.spec = replace(spec, held_out=name)
        self.map = relabel(data.num_classes, spec.half)
        rest = [old for old in range(data.num_classes) if old not in self.map]
        self.new_map = {old: new for new, old in enumerate(rest)}
        self.classnames = [data.classnames[old] for old in self.map]
        self._cut()
        test, run = self.full.labels["test"], self.pool.labels["test"]
        self.test_new = test_new and spec.half == "base"
        self.test = np.flatnonzero(run >= 0)
        self.new_test = np.flatnonzero((run < 0) & (test >= 0)) if self.test_new else self.test[:0]
        self.server: dict[str, IntArray] = {}
        self.notes: list[str] = []
        self.skipped: list[str] = []
        self.records, self.policy = ImageRecords(None), "skip"
        self._reasons: list[str] = []  # why images are left out, not yet in the notes

    def _cut(self) -> None:
        """Give every image its label of the run, or -1, and find those of the held-out domain."""
        data, names = self.data, list(self.data.domain_names)
        table = np.full(data.num_classes, -1, dtype=np.int64)
        table[list(self.map)] = list(self.map.values())
        labels = {part: labels_of(data.parts[part]) for part in PARTS}
        domains = {part: domains_of(data.parts[part]) for part in PARTS}
        out = -1 if self.held_out is None else self.held_out
        self.unseen = np.flatnonzero((domains["test"] == out) & (table[labels["test"]] >= 0))
        if self.held_out is not None:
            others = {part: domains[part] != out for part in PARTS}
            labels = {part: np.where(others[part], labels[part], -1) for part in PARTS}
            table = np.append(table, -1)  # label -1 stays -1
            domains = {p: np.where(others[p], d - (d > out), -1) for p, d in domains.items()}
            names.pop(self.held_out)
        owned = (data.client_numbers(), data.client_names, _groups(data), data.kind)
        self.full = ImagePool(labels, data.num_classes, domains, names, data.classnames, *owned)
        run = {part: table[labels[part]] for part in PARTS}
        self.pool = ImagePool(run, len(self.map), domains, names, self.classnames, *owned)

    def hold_out(
        self, shots: ShotList | None = None, positions: Mapping[str, IntArray] | None = None
    ) -> None:
        """Give the server images that no client gets; comes before anything is drawn or dealt.

        Args:
            shots: of a file; they are the clients'.
            positions: of the server's images, where they are known; by default they are drawn.

        Raises:
            ConfigError: a class would lose its last image.
        """
        each = self.spec.server_holdout
        if not each:
            return
        if positions is None:
            taken = shots.positions if shots else None
            positions = draw_holdout(self.full, each, self.spec.seed, self.map, taken)
        self.server = {part: at[self.pool.labels[part][at] >= 0] for part, at in positions.items()}
        mates = _mates(self.full, positions)
        if mates and any(map(len, mates.values())):
            self.full, self.pool = (remove_positions(p, mates) for p in (self.full, self.pool))
            self.notes.append(
                f"DATASET.GROUPS: {sum(map(len, mates.values()))} more images are of the same "
                "groups as the server's, and no client gets them")
        self.full = remove_positions(self.full, positions)
        self.pool = remove_positions(self.pool, positions)
        train, val = len(self.server["train"]), len(self.server["val"])
        count = f"{train + val} {self.data.kind}s"
        self.notes.append(
            f"DATASET.SERVER_HOLDOUT {each}: no client gets {count} ({train} of the "
            f"training and {val} of the validation list), which are set aside for the server"
        )

    def classes_without(self, part: str) -> list[str]:
        """Return the names of the run's classes that have no image in a part."""
        labels = set(self.pool.labels[part].tolist())
        return [name for label, name in enumerate(self.classnames) if label not in labels]

    def class_notes(self) -> list[str]:
        """Return notes on the classes of the run, before anything is dealt."""
        notes, spec = [], self.spec
        trained = self.pool.labels["train"]
        short = [label for label in short_classes(trained, spec.shots) if label >= 0]
        if short:
            names = ", ".join(self.classnames[label] for label in short[:MOST_NAMED])
            most = max(int((trained == label).sum()) for label in short)
            notes.append(
                f"{len(short)} class(es) have fewer than {spec.shots} training images, at most "
                f"{most}: all of them are used ({names}); the results' folder is still "
                f"named shots_{spec.shots}"
            )
        for part, word in (("train", "training"), ("test", "test")):
            bare = self.classes_without(part)
            if bare and len(bare) < len(self.classnames):
                first = ", ".join(bare[:MOST_NAMED])
                notes.append(f"{len(bare)} class(es) have no {word} image: {first}")
        if spec.kind == "disjoint" and spec.legacy:
            notes.append(
                "legacy-2023 class map: the same for every data seed; shots follow DATA_SEED"
            )
        return notes

    def drop_broken_tests(self, records: ImageRecords, policy: str) -> None:
        """Leave out the test images, and those of the server, that do not decode.

        Args:
            records: of the set's folder.
            policy: what is done about images that do not decode, ``skip`` or ``refuse``.

        Raises:
            DataError: images that do not exist.
        """
        self.records, self.policy = records, policy
        tests = {"test": np.concatenate([self.test, self.new_test, self.unseen])}
        broken = self._broken(self.server | tests)
        self.server = {part: _without(at, broken[part]) for part, at in self.server.items()}
        self.test, self.new_test, self.unseen = (
            _without(at, broken["test"]) for at in (self.test, self.new_test, self.unseen)
        )
        if not len(self.test) and self.data.test:
            self.notes.append(f"{self.data.name}: there are no test images of the run's classes")
        elif self.test_new and self.data.test and not len(self.new_test):
            self.notes.append(f"{self.data.name}: there are no new test images")

    def keep_tests(self, names: Iterable[str]) -> None:
        """Leave out the test images that are not among ``names``; others were forgotten."""
        kept, tests = set(names), self.data.test
        self.test, self.new_test, self.unseen = (
            at[[tests[i].key in kept for i in at]] for at in (self.test, self.new_test, self.unseen)
        )

    def rehearse(self, shots: ShotList | None = None) -> None:
        """Deal once as if every image decoded, so that what cannot work is refused at once.

        Looking at the images of a large set takes minutes, and then encoding them more.

        Raises:
            ConfigError: the images do not reach all clients.
        """
        if draws_per_client(self.spec):
            shots_per_client(self.pool, self.spec)
            return
        if shots is not None:
            positions = shots.of_run(self.pool)
        else:
            positions = candidates(self.full, self.pool, self.spec)
        make_partition(self.pool.select(positions | {"test": self.test}), self.spec)

    def partition(self, shots: ShotList | None = None) -> Partition:
        """Draw shots (or take those of a file), leave out what does not decode, deal.

        Raises:
            ConfigError: the images do not reach all clients.
            DataError: images that do not exist, or do not decode under ``refuse``.
        """
        if draws_per_client(self.spec):
            whole = shots_per_client(self.pool, self.spec)
            self.notes += shortage_notes(self.pool, whole, self.spec)
            return self._decodable(whole)
        if shots is not None:
            positions = shots.of_run(self.pool)
            self.notes.append(shots.note)
        else:
            positions = candidates(self.full, self.pool, self.spec)
        broken = self._broken({part: positions[part] for part in _CLIENT_PARTS})
        self._note_broken()
        use = {part: _without(positions[part], broken[part]) for part in _CLIENT_PARTS}
        use["test"] = self.test
        return make_partition(self.pool.select(use), self.spec).translate(use)

    def partition_from_file(self, content: Mapping[str, Any], where: str) -> Partition:
        """Take the clients of an index file, leave out what does not decode.

        Raises:
            DataError: the file does not fit the set; images as in ``partition``.
        """
        inside = {p: np.flatnonzero(self.pool.labels[p] >= 0) for p in PARTS}
        lists = {p: [self.data.parts[p][i] for i in inside[p]] for p in PARTS}
        whole = partition_from(content, lists, self.classnames, where).translate(inside)
        partition = self._decodable(whole)
        for part, groups in self.pool.groups.items():
            holders = [set(groups[a].tolist()) for a in partition.part(part)]
            if sum(map(len, holders)) > len(set().union(*holders)):
                raise DataError(f"{where}: a group of DATASET.GROUPS stands at two clients in "
                                f"{part}; leave --groups out, or make the partition with it")
        self.notes.append(
            f"partition read from {where}; the partition keys of FED and DATA_SEED do not change it"
        )
        return partition

    def _decodable(self, whole: Partition) -> Partition:
        """Return the partition without broken images."""
        union = whole.union()
        broken = self._broken({part: union[part] for part in _CLIENT_PARTS})
        self._note_broken()
        tests = range(len(self.pool.labels["test"]))
        broken["test"] = set(tests) - set(self.test.tolist())
        return whole.drop(broken)

    def _broken(self, positions: Mapping[str, IntArray]) -> dict[str, set[int]]:
        """Return by part the positions that do not decode."""
        lists = {p: [self.data.parts[p][i] for i in at] for p, at in positions.items()}
        places, reasons = find_broken(lists, self.records)
        self._reasons += reasons
        broken: dict[str, set[int]] = {part: set() for part in PARTS}
        for part, bad in places.items():
            broken[part] = {int(positions[part][i]) for i in bad}
            self.skipped += [lists[part][i].key for i in bad]
        return broken

    def _note_broken(self) -> None:
        """Count and name the broken images, or refuse them, once all that the run uses is drawn.

        One message names those of the test list and those of the clients.
        """
        self.notes += say_broken(self.data.name, self._reasons, self.policy)
        self._reasons = []


def _mates(pool: ImagePool, positions: Mapping[str, IntArray]) -> dict[str, IntArray]:
    """Return the positions of the other images of the groups that some images belong to."""
    mates = {}
    for part, at in positions.items():
        if part in pool.groups:
            same = np.isin(pool.groups[part], np.unique(pool.groups[part][at]))
            mates[part] = np.setdiff1d(np.flatnonzero(same), at)
    return mates


def _groups(data: DatasetBase) -> dict[str, IntArray]:
    """Return the group number of each image by part; empty where no image has a group."""
    if all(d.group is None for d in data.all()):
        return {}
    return {part: group_numbers(data.parts[part]) for part in PARTS}


def _without(positions: IntArray, broken: set[int]) -> IntArray:
    return np.sort(positions[~np.isin(positions, list(broken))]) if broken else np.sort(positions)
