"""``build_federation``: from the config to every client's images, checked and with a digest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from yacs.config import CfgNode

from fedvlm.data.cachedir import records_dir
from fedvlm.data.datasets import load_for_training, templates
from fedvlm.data.datum import PARTS, Datum, IntArray, domains_of, labels_of
from fedvlm.data.draw import Drawn, Setting, spec_of
from fedvlm.data.fewshot_file import given_shots
from fedvlm.data.image_records import ImageRecords, Progress
from fedvlm.data.index_file import canonical_hash, read_index_file, sealed, spec_from
from fedvlm.data.notes import NAMED, lacking, setting_notes, twins, untrained
from fedvlm.data.others import (
    DATASET,
    OtherTest,
    Target,
    held_out_domain,
    load_targets,
    split_digest,
    target_tests,
)
from fedvlm.data.partition import Partition, PartitionSpec
from fedvlm.data.plan import check_fits
from fedvlm.errors import ConfigError, DataError, did_you_mean

_POLICIES = ("skip", "refuse")


@dataclass(frozen=True)
class ClientSplit:
    """One client's images: sorted, read-only int64 indices into ``FederatedData.samples``."""

    train: IntArray
    val: IntArray
    test: IntArray
    domain: str = ""


@dataclass(frozen=True, eq=False)
class FederatedData:
    """What the federation, the evaluation and the image loader need to know of the data.

    Attributes:
        name: of the set.
        samples: every image used; ``label`` is the run's (new classes have their own from 0).
        classnames, new_classnames: by label; the second is empty where new is not evaluated.
        templates: prompt templates with ``{}``.
        clients: one split per client.
        global_test: indices of all test images of the run's classes.
        new_test: indices of the new classes' test images.
        labels, domains: int64 ``[len(samples)]``; a target's images have its labels and domain -1.
        domain_names: by domain number; empty for a set without domains.
        spec: how it was partitioned.
        skipped: keys of images that do not decode.
        digest: sha256 over the index file and the set's lists.
        notes: sentences for the log and the results.
        records: known content keys, for ``ImageLoader``.
        others: more test sets of the global model: the domain left out, targets of transfer.
    """

    name: str
    samples: list[Datum]
    classnames: list[str]
    new_classnames: list[str]
    templates: list[str]
    clients: list[ClientSplit]
    global_test: IntArray
    new_test: IntArray
    labels: IntArray
    domains: IntArray
    domain_names: list[str]
    spec: PartitionSpec
    skipped: list[str]
    split_digest: str
    notes: list[str]
    records: ImageRecords = field(repr=False)
    others: list[OtherTest] = field(default_factory=list)

    def index_file(self) -> dict[str, Any]:
        """Return the index file's content: paths per client and part, spec, and hash."""
        keys = [sample.key for sample in self.samples]
        clients = [
            {
                "domain": client.domain,
                **{part: [keys[i] for i in getattr(client, part)] for part in PARTS},
            }
            for client in self.clients
        ]
        return sealed(
            {
                "dataset": self.name,
                "spec": self.spec.identity(),
                "classnames": self.classnames,
                "skipped": self.skipped,
                "clients": clients,
            }
        )

    @property
    def digest(self) -> str:
        """The sha256 that stands for this data and this partition in a run's identity."""
        parts: list[Any] = [self.index_file()["sha256"], self.split_digest, self.new_classnames]
        targets = [o for o in self.others if o.kind == DATASET]  # a domain is in the spec
        if targets:
            parts.append([[o.name, o.split_digest, o.classnames, o.templates] for o in targets])
        return canonical_hash(parts)


def build_federation(cfg: CfgNode, progress: Progress | None = None) -> FederatedData:
    """Read the set, draw shots, check the images used, and give each client its share.

    Args:
        progress: called with (what, done, of) while images are checked.

    Raises:
        ConfigError: values that cannot work together; said before any image is opened.
        DataError: missing, broken or inconsistent data.
    """
    if cfg.DATASET.ON_CORRUPT not in _POLICIES:
        raise ConfigError(
            f"unknown DATASET.ON_CORRUPT '{cfg.DATASET.ON_CORRUPT}'"
            f"{did_you_mean(cfg.DATASET.ON_CORRUPT, _POLICIES)} (known: skip, refuse)"
        )
    spec, prompts = spec_of(cfg), templates(cfg)
    setting = Setting(load_for_training(cfg), spec)
    index = cfg.FED.INDEX_FILE
    content = read_index_file(index) if index else None
    if content is not None:
        setting.spec = spec_from(content, spec, index)
    else:
        check_fits(spec, setting.pool, setting.data.num_classes)
    given = given_shots(cfg, setting.data, setting.full, setting.spec)
    targets = load_targets(cfg, setting.data.name)
    folder = common_folder(setting.data.all())
    records = ImageRecords.of_folder(folder, records_dir(cfg)) if folder else ImageRecords(None)
    records.progress = progress
    new_half = cfg.DATASET.TEST_NEW and setting.spec.half == "base"
    drawn = Drawn(setting, records, cfg.DATASET.ON_CORRUPT, new_half)
    if content is not None:
        partition = drawn.from_file(content, index)
    else:
        partition = drawn.partition(given)
    return _assemble(setting, drawn, partition, prompts, targets)


def _assemble(
    setting: Setting, drawn: Drawn, partition: Partition, prompts: list[str],
    targets: Sequence[Target],
) -> FederatedData:
    data, spec = setting.data, setting.spec
    used = partition.used() | {"test": drawn.test}
    samples: list[Datum] = []
    indices: dict[str, list[IntArray]] = {}
    for part in PARTS:
        start = len(samples)
        indices[part] = [_shift(a, used[part], start) for a in partition.part(part)]
        samples += [_relabelled(data.part(part)[i], setting.map) for i in used[part]]
    global_test = _shift(drawn.test, drawn.test, len(samples) - len(drawn.test))
    new_map = setting.new_map if len(drawn.new_test) else {}
    new_test = _shift(drawn.new_test, drawn.new_test, len(samples))
    samples += [_relabelled(data.test[i], new_map) for i in drawn.new_test]
    others, more, target_notes = _others(setting, drawn, prompts, targets, len(samples))
    samples += more
    domains = domains_of(samples)
    clients = [
        ClientSplit(a, b, c, _one_domain(domains[a], data.domain_names))
        for a, b, c in zip(indices["train"], indices["val"], indices["test"], strict=True)
    ]
    _refuse_empty(clients, setting)
    tests = (global_test, new_test, *(other.indices for other in others))
    trains = [client.train for client in clients]
    notes = [
        *data.notes, *drawn.notes, *setting_notes(setting),
        *untrained([(client.train, client.test) for client in clients], labels_of(samples)),
        *target_notes, *twins(trains, tests, samples, drawn.records),
    ]  # fmt: skip
    return FederatedData(
        name=data.name,
        samples=samples,
        classnames=setting.classnames,
        new_classnames=[data.classnames[old] for old in new_map],
        templates=prompts,
        clients=clients,
        global_test=global_test,
        new_test=new_test,
        labels=labels_of(samples),
        domains=domains,
        domain_names=data.domain_names,
        spec=spec,
        skipped=sorted(set(drawn.skipped)),
        split_digest=split_digest(data),
        notes=notes,
        records=drawn.records,
        others=others,
    )


def _others(
    setting: Setting, drawn: Drawn, prompts: list[str], targets: Sequence[Target], start: int
) -> tuple[list[OtherTest], list[Datum], list[str]]:
    """Return the test sets beside the run's own, their images (from index ``start``), and notes."""
    data = setting.data
    unseen = _shift(drawn.unseen, drawn.unseen, start)
    others = held_out_domain(
        data.domain_names, setting.held_out, setting.classnames, prompts, unseen
    )
    samples = [_relabelled(data.test[i], setting.map) for i in drawn.unseen]
    found, notes = target_tests(targets, start + len(samples), drawn.records, drawn.policy)
    for other, images in found:
        others.append(other)
        samples += images
    return others, samples, notes


def _shift(positions: IntArray, used: IntArray, start: int) -> IntArray:
    """Translate positions into a list to indices into the samples that hold ``used`` of it."""
    indices = (np.searchsorted(used, positions) + start).astype(np.int64)
    indices.setflags(write=False)
    return indices


def _relabelled(datum: Datum, table: Mapping[int, int]) -> Datum:
    return replace(datum, label=table[datum.label])


def _one_domain(domains: IntArray, names: Sequence[str]) -> str:
    found = np.unique(domains)
    return names[int(found[0])] if len(found) == 1 and names else ""


def _refuse_empty(clients: Sequence[ClientSplit], setting: Setting) -> None:
    empty = [j for j, client in enumerate(clients) if not len(client.train)]
    if empty:
        bare = lacking(setting, "train")
        named = f"; without any: class(es) {', '.join(bare[:NAMED])}" if bare else ""
        raise DataError(
            f"client(s) {', '.join(map(str, empty[:NAMED]))} would hold no training image{named}; "
            "use fewer FED.CLIENTS, or mend the images that do not decode"
        )


def common_folder(samples: Sequence[Datum]) -> Path | None:
    """Return the folder that holds all image files; None where there are none."""
    folders = {os.path.dirname(d.impath) for d in samples if d.array is None}
    return Path(os.path.commonpath(folders)) if folders else None
