"""``build_federation``: from the config to every client's images, checked and with a digest.

Test sets of the global model beside the run's own: the domain left out, and other data sets.

A domain left out (``FED.HELD_OUT_DOMAIN``) has the run's classes. A target of transfer
(``TEST.TARGETS``) has class names and a prompt of its own; all its classes and all its test images
are asked for, whatever the run's classes are.

What a run's notes say of its data: classes that lack images, tests that training does not fit.

Nothing is changed here; a note goes into the log and the results.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from yacs.config import CfgNode

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.config.read import find_config, lookup
from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.core.files import records_dir
from fedvlm.core.progress import Progress
from fedvlm.data.catalog import dataset_info
from fedvlm.data.datasets import load_dataset, load_for_training, templates
from fedvlm.data.datum import PARTS, DatasetBase, Datum, IntArray, domains_of, labels_of
from fedvlm.data.draw import Drawn, Setting, spec_of
from fedvlm.data.fewshot import short_classes
from fedvlm.data.fewshot_file import given_shots
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import broken_images
from fedvlm.data.partition.index_file import canonical_hash, read_index_file, sealed, spec_from
from fedvlm.data.partition.kinds import check_fits
from fedvlm.data.partition.spec import Partition, PartitionSpec

DOMAIN, DATASET = "domain", "dataset"


@dataclass(frozen=True, eq=False)
class OtherTest:
    """One more test set.

    Attributes:
        name: of the domain or the data set.
        kind: ``DOMAIN`` (the run's classes) or ``DATASET`` (its own).
        classnames: by label.
        templates: prompt templates with ``{}``.
        indices: sorted indices into ``FederatedData.samples``.
        split_digest: sha256 of the set's lists; empty for a domain of the run's own set.
    """

    name: str
    kind: str
    classnames: list[str]
    templates: list[str]
    indices: IntArray
    split_digest: str = ""


@dataclass(frozen=True)
class Target:
    """A data set to transfer to, as its config describes it."""

    data: DatasetBase
    templates: list[str]


def load_targets(cfg: CfgNode, own: str) -> list[Target]:
    """Read the lists of the sets that ``TEST.TARGETS`` names; no image is opened.

    Args:
        own: name of the run's own set.

    Raises:
        ConfigError: an unknown name, one given twice, or the run's own set.
        DataError: a target's lists are missing or inconsistent, or it has no test images.
    """
    found: list[Target] = []
    for word in cfg.TEST.TARGETS:
        node = _config_of(str(word), cfg)
        target = Target(load_dataset(node), templates(node))
        name = target.data.name
        if name == own:
            raise ConfigError(
                f"TEST.TARGETS names {word}, the run's own set: its test images are `global` "
                "already; drop it"
            )
        if name in [known.data.name for known in found]:
            raise ConfigError(f"TEST.TARGETS names {name} twice ({word}); once is enough")
        if not target.data.test:
            raise DataError(f"TEST.TARGETS {word}: {name} has no test images; drop it")
        found.append(target)
    return found


def held_out_domain(
    names: Sequence[str], number: int | None, classnames: Sequence[str],
    prompts: Sequence[str], indices: IntArray,
) -> list[OtherTest]:
    """Return the domain that no client holds as a list of one test set; empty without one.

    Args:
        names: domain names by number.
        number: of the domain left out, or None.

    Raises:
        DataError: it has no test image of the run's classes.
    """
    if number is None:
        return []
    if not len(indices):
        raise DataError(
            f"FED.HELD_OUT_DOMAIN {names[number]}: it has no test image of the run's classes; "
            "leave another domain out"
        )
    return [OtherTest(names[number], DOMAIN, list(classnames), list(prompts), indices)]


def target_tests(
    targets: Sequence[Target], start: int, records: ImageRecords, policy: str
) -> tuple[list[tuple[OtherTest, list[Datum]]], list[str]]:
    """Return the targets' test sets with their images, and what is to be said of them.

    Args:
        start: index of the first of these images in ``FederatedData.samples``.
        policy: what is done about images that do not decode, ``skip`` or ``refuse``.

    Raises:
        DataError: images that do not decode under ``refuse``, or none that does.
    """
    found: list[tuple[OtherTest, list[Datum]]] = []
    notes: list[str] = []
    for target in targets:
        data = target.data
        places, broken = broken_images(data.name, {"test": data.test}, records, policy)
        bad = set(places["test"])
        images = [replace(d, domain=-1) for i, d in enumerate(data.test) if i not in bad]
        if not images:
            raise DataError(f"TEST.TARGETS {data.name}: none of its test images decodes")
        indices = np.arange(start, start + len(images), dtype=np.int64)
        indices.setflags(write=False)
        start += len(images)
        test = OtherTest(
            data.name, DATASET, data.classnames, target.templates, indices, split_digest(data)
        )
        found.append((test, images))
        notes += [n if n.startswith(data.name) else f"{data.name}: {n}" for n in data.notes]
        notes += [f"{data.name}: {note}" for note in broken]
    return found, [*notes, *_cost([test for test, _ in found])]


def split_digest(data: DatasetBase) -> str:
    """Return the sha256 of a set's lists: keys, labels, domains, class and domain names."""
    rows = {part: [[d.key, d.label, d.domain] for d in data.part(part)] for part in PARTS}
    return canonical_hash([data.classnames, data.domain_names, rows])


def _cost(targets: Sequence[OtherTest]) -> list[str]:
    if not targets:
        return []
    images = sum(len(target.indices) for target in targets)
    sizes = ", ".join(f"{t.name} ({len(t.classnames)} classes)" for t in targets)
    return [
        f"TEST.TARGETS: {images:,} more test images, of {sizes}, are encoded; they are classified "
        "at the untrained start and after the last round only"
    ]


def _config_of(word: str, cfg: CfgNode) -> CfgNode:
    """Return the config of a set by the name of its file, a file, or a name the catalog has."""
    path = lookup(word, "datasets")
    info = dataset_info(word) if path is None else None
    flags = {"CACHE_DIR": cfg.CACHE_DIR, "DATASET.ON_CORRUPT": cfg.DATASET.ON_CORRUPT}
    if cfg.DATASET.ROOT:
        flags["DATASET.ROOT"] = cfg.DATASET.ROOT
    if info is not None:
        flags["DATASET.NAME"] = info.name
    try:
        file = None if info is not None else path or find_config(word, "datasets")
        return build_config(file, None, flags, [], default_schema())[0]
    except ConfigError as mistake:
        raise ConfigError(f"TEST.TARGETS: {mistake}") from None


NAMED = 10  # classes or clients that a message lists


def lacking(setting: Setting, part: str) -> list[str]:
    """Return the names of the run's classes that have no image in a part."""
    there = set(setting.pool.labels[part].tolist())
    return [name for label, name in enumerate(setting.classnames) if label not in there]


def setting_notes(setting: Setting) -> list[str]:
    """Return notes on the classes of the run, before anything is dealt."""
    notes = []
    spec = setting.spec
    short = short_classes(setting.pool.labels["train"], spec.shots)
    names = [setting.classnames[label] for label in short if label >= 0]
    if names:
        notes.append(
            f"{len(names)} class(es) have fewer than {spec.shots} training images and give all "
            f"they have: {', '.join(names[:NAMED])}"
        )
    for part, word in (("train", "training"), ("test", "test")):
        bare = lacking(setting, part)
        if bare and len(bare) < len(setting.classnames):
            notes.append(f"{len(bare)} class(es) have no {word} image: {', '.join(bare[:NAMED])}")
    if spec.kind == "disjoint" and spec.legacy:
        notes.append("legacy-2023 class map: the same for every data seed; shots follow DATA_SEED")
    return notes


def untrained(pairs: Sequence[tuple[IntArray, IntArray]], labels: IntArray) -> list[str]:
    """Return a note on client test images of classes of which the client has no training image.

    Few shots bring it about: k images of a class cannot be cut among more than k clients, and its
    many test images can.

    Args:
        pairs: the training and the test images of each client, as indices into ``labels``.
    """
    tested, off, clients = 0, 0, 0
    for train, test in pairs:
        known = set(labels[train].tolist())
        mine = sum(label not in known for label in labels[test].tolist())
        tested, off, clients = tested + len(test), off + mine, clients + (mine > 0)
    if not off:
        return []
    return [
        f"{off:,} of the clients' {tested:,} test images, at {clients} of {len(pairs)} clients, "
        "are of classes of which that client has no training image"
    ]


def twins(
    trains: Sequence[IntArray], tests: Sequence[IntArray], samples: Sequence[Datum],
    records: ImageRecords,
) -> list[str]:
    """Return a note on test images whose bytes are also a training image's."""
    keys = [records.content_key(s) if s.array is None else "" for s in samples]
    trained = {keys[i] for train in trains for i in train} - {""}
    found = [samples[i].key for indices in tests for i in indices if keys[i] in trained]
    if not found:
        return []
    return [
        f"{len(found)} test image(s) have the same bytes as a training image "
        f"(first: {found[0]}): they are kept, as the split has them"
    ]


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
