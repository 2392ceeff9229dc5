"""``build_federation``: from the config to every client's images, checked and with a digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from yacs.config import CfgNode

from fedvlm.core.errors import DataError
from fedvlm.core.progress import Progress
from fedvlm.core.spelling import check_described, texts_covered
from fedvlm.data.datasets import (
    ONE_CLASS,
    load_for_training,
    name_untested,
    templates,
    untested_words,
)
from fedvlm.data.datum import (
    NO_LABEL,
    PARTS,
    DatasetBase,
    Datum,
    IntArray,
    domains_of,
    group_numbers,
    labels_of,
    refuse_targets,
)
from fedvlm.data.draw import MOST_NAMED, DatasetDraw, spec_of
from fedvlm.data.holdout import LISTS, SERVER_KEY, holdout_from
from fedvlm.data.image_records import ImageRecords, records_of
from fedvlm.data.partition.index_file import (
    FORGOTTEN,
    UNLABELLED,
    canonical_hash,
    read_index_file,
    seal,
    spec_from,
)
from fedvlm.data.partition.kinds import check_fits
from fedvlm.data.partition.spec import Partition, PartitionSpec
from fedvlm.data.targets import (
    DATASET,
    DOMAIN,
    ExtraTest,
    Target,
    load_targets,
    split_digest,
    target_tests,
)

MOST_OF_ALL = 0.75  # share of all training images, above which others have nothing new for a client
_COPIES = ("AFL and its baseline choose their ridge by a formula that counts each client's copy as "
           "another image: their numbers are too low here")


@dataclass(frozen=True)
class ClientSplit:
    """One client's images: sorted, read-only int64 indices into ``FederatedData.samples``.

    ``unlabelled`` are training images without a label, which are in none of the parts.
    """

    train: IntArray
    val: IntArray
    test: IntArray
    domain: str = ""
    unlabelled: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class FederatedData:
    """What the federation, the evaluation and the image loader need to know of the data.

    Attributes:
        name: of the set.
        samples: every image used; ``label`` is the run's (new classes have their own from 0), -1
            of images without one, which come last.
        classnames, new_classnames: by label; the second is empty where new is not evaluated.
        templates: prompt templates with ``{}``.
        clients: one split per client.
        global_test: indices of all test images of the run's classes.
        new_test: indices of the new classes' test images.
        labels, domains: int64 ``[len(samples)]``; a target's images have its labels and domain -1.
        captioned: images have captions (``Datum.captions``); their classes are topics.
        label_sets: uint8 ``[S, C]``, the sets of labels that occur, where an image has a set of
            them: ``labels`` is then the row of its set; else None.
        domain_names: by domain number; empty for a set without domains.
        spec: how it was partitioned.
        skipped: keys of images that do not decode.
        digest: sha256 over the index file and the set's lists.
        notes: for the log and the results.
        doubts: sentences without which the numbers mislead, for a run's last lines.
        records: known content keys, for ``ImageLoader``.
        others: more test sets of the global model: the domain left out, targets of transfer.
        server: indices of the images that no client gets (``DATASET.SERVER_HOLDOUT``).
        available: training images of the run's classes and domains, before any shots.
        client_names: of the clients in a natural partition, by number; personal data, so that they
            are in no digest, index file, pack or public file of a run. Of data in memory those of
            the domains.
        written: the templates are a file's (``DATASET.TEMPLATES``), which the digest then covers.
        client_templates: of the clients for which that file has their own, by number.
        groups: int64 ``[len(samples)]``, what each image belongs to; None where nothing says it.
        forgotten: the section of the index file that says what was taken away; empty without one.
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
    others: list[ExtraTest] = field(default_factory=list)
    server: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    available: int = 0
    client_names: list[str] = field(default_factory=list)
    groups: IntArray | None = None
    label_sets: NDArray[np.uint8] | None = None
    written: bool = False
    client_templates: Mapping[int, list[str]] = field(default_factory=dict)
    forgotten: Mapping[str, Any] = field(default_factory=dict)
    captioned: bool = False
    doubts: list[str] = field(default_factory=list)

    @property
    def untested(self) -> list[int]:
        """Numbers of the clients that have no test image, where others have some."""
        bare = [c for c, one in enumerate(self.clients)
                if len(one.train) + len(one.unlabelled) and not len(one.test)]
        return bare if any(len(one.test) for one in self.clients) else []

    def on_screen(self, notes: Sequence[str]) -> list[str]:
        """Return notes as a screen of this machine shows them: clients without tests by name."""
        return name_untested(notes, self.untested, self.client_names)

    def dealt_as(self) -> tuple[IntArray, list[str]]:
        """Return the class ``[len(samples)]`` by which an image was dealt, and the classes' names.

        It is the label, and of a set of labels the rarest (``NO_LABEL`` of an empty set).
        """
        if self.label_sets is None:
            return self.labels, self.classnames
        return labels_of(self.samples), [*self.classnames, NO_LABEL]

    def index_file(self) -> dict[str, Any]:
        """Return the index file's content: paths per client and part, spec, and hash."""
        keys = [sample.key for sample in self.samples]
        clients = []
        for client in self.clients:
            lists = {part: [keys[i] for i in getattr(client, part)] for part in PARTS}
            if len(client.unlabelled):
                lists[UNLABELLED] = [keys[i] for i in client.unlabelled]
            clients.append({"domain": client.domain, **lists})
        more: dict[str, Any] = {}
        if self.spec.server_holdout:
            more[SERVER_KEY] = [keys[i] for i in self.server]
        if self.forgotten:
            more[FORGOTTEN] = dict(self.forgotten)
        return seal(
            {
                "dataset": self.name,
                "spec": self.spec.identity(),
                "classnames": self.classnames,
                "skipped": self.skipped,
                "clients": clients,
                **more,
            }
        )

    @property
    def without_labels(self) -> list[int]:
        """Numbers of the clients that have only images without a label."""
        return [c for c, one in enumerate(self.clients)
                if len(one.unlabelled) and not len(one.train)]

    @property
    def digest(self) -> str:
        """The sha256 that stands for this data and this partition in a run's identity."""
        parts: list[Any] = [self.index_file()["sha256"], self.split_digest, self.new_classnames]
        targets = [o for o in self.others if o.kind == DATASET]  # a domain is in the spec
        if targets:
            parts.append([[o.name, o.split_digest, o.classnames, o.templates] for o in targets])
        if self.written:
            parts.append(texts_covered(self.templates, self.client_templates))
        return canonical_hash(parts)


def build_federation(
    cfg: CfgNode, progress: Progress | None = None, data: DatasetBase | None = None, *,
    tested: bool = True,
) -> FederatedData:
    """Read the set, draw shots, check the images used, and give each client its share.

    Args:
        progress: called with (what, done, of) while images are checked.
        data: the set, checked, where it is no folder's; otherwise the config says what to read.
        tested: False opens no test image, and none of the server's: they are listed, unchecked,
            and no note is on their labels.

    Raises:
        ConfigError: values that cannot work together; said before any image is opened.
        DataError: missing, broken or inconsistent data.
    """
    spec, prompts = spec_of(cfg), templates(cfg)
    data = load_for_training(cfg) if data is None else data
    check_described(prompts, data.label_names or data.classnames, "DATASET.TEMPLATES")
    if data.label_names or data.captioned:
        _check_keys(cfg, data)
    selection = DatasetDraw(data, spec, cfg.DATASET.TEST_NEW)
    index = cfg.FED.INDEX_FILE
    content = read_index_file(index) if index else None
    if content is not None:
        selection.spec = spec_from(content, spec, index)
    else:
        check_fits(spec, selection.pool, data.num_classes, data.name)
    own = _client_templates(cfg, data, selection.spec)
    shots = None
    if cfg.DATASET.get("FEWSHOT_FILE", ""):
        from fedvlm.data.fewshot_file import read_shots  # start-up: for such a file only

        shots = read_shots(cfg, data, selection.full, selection.spec)
    if content is not None and selection.spec.server_holdout:
        selection.hold_out(positions=holdout_from(content, data.parts, index))
    else:
        selection.hold_out(shots)
    if content is None:
        selection.rehearse(shots)
    targets = load_targets(cfg, data.name) if tested else []
    records = records_of([*data.all(), *data.unlabelled], cfg)
    records.progress = progress
    if content is not None and FORGOTTEN in content:
        selection.keep_tests(content[FORGOTTEN]["tests"])
    if tested:
        selection.drop_broken_tests(records, cfg.DATASET.ON_CORRUPT)
    else:
        selection.records, selection.policy = records, cfg.DATASET.ON_CORRUPT
    if content is not None:
        partition = selection.partition_from_file(content, index)
    else:
        partition = selection.partition(shots)
    forgotten = (content or {}).get(FORGOTTEN, {})
    bare: Sequence[Sequence[Datum]] = ()
    named = any(client.get("unlabelled") for client in (content or {}).get("clients", ()))
    if data.unlabelled or named:
        from fedvlm.data.partition import unlabelled  # start-up: for such images only

        bare = unlabelled.deal_unlabelled(selection, content, index)
    whole = _assemble(selection, partition, prompts, targets, tested, forgotten, bare)
    if tested and (words := untested_words(whole.untested)):
        whole.notes.append(words)
        whole.doubts.extend(_sentences([words]))
    if not cfg.DATASET.get("TEMPLATES", ""):
        return whole
    notes = [f"{len(own)} of {len(whole.clients)} clients have templates of their own "
             "(DATASET.TEMPLATES); the shared model has everybody's"] if own else []
    return replace(
        whole, written=True, client_templates=own, notes=[*whole.notes, *notes]
    )


def _client_templates(
    cfg: CfgNode, data: DatasetBase, spec: PartitionSpec
) -> dict[int, list[str]]:
    """Return the templates of clients that have their own (``DATASET.TEMPLATES``)."""
    file = cfg.DATASET.get("TEMPLATES", "")
    if not file:
        return {}
    from fedvlm.data.own.sentences import read_client_templates  # start-up: for such a file only

    names = data.client_names if spec.kind == "natural" else []
    return read_client_templates(
        file, names, spec.clients, data.label_names or data.classnames)


def _assemble(
    selection: DatasetDraw, partition: Partition, prompts: list[str], targets: Sequence[Target],
    tested: bool, forgotten: Mapping[str, Any], bare: Sequence[Sequence[Datum]],
) -> FederatedData:
    """Put all images that the run uses into one list, and the clients' shares as indices into it.

    The order: training, validation and test images by position, new classes, other test sets, the
    server's images, each client's images without a label (``bare``).
    """
    data, spec = selection.data, selection.spec
    union = partition.union() | {"test": selection.test}
    samples: list[Datum] = []
    indices: dict[str, list[IntArray]] = {}
    for part in PARTS:
        start = len(samples)
        indices[part] = [_shift(a, union[part], start) for a in partition.part(part)]
        samples += [_relabel(data.parts[part][i], selection.map) for i in union[part]]
    test, new = selection.test, selection.new_test
    global_test = _shift(test, test, len(samples) - len(test))
    new_map = selection.new_map if len(new) else {}
    new_test = _shift(new, new, len(samples))
    samples += [_relabel(data.test[i], new_map) for i in new]
    others, images, target_notes = _others(selection, prompts, targets, len(samples))
    samples += images
    held_out = [data.parts[part][i] for part in LISTS for i in selection.server.get(part, ())]
    server = np.arange(len(samples), len(samples) + len(held_out), dtype=np.int64)
    server.setflags(write=False)
    samples += [_relabel(datum, selection.map) for datum in held_out]
    domains = domains_of(samples)
    clients = [
        ClientSplit(a, b, c, _one_domain(domains[a], data.domain_names))
        for a, b, c in zip(indices["train"], indices["val"], indices["test"], strict=True)
    ]
    if bare:
        ends = len(samples) + np.cumsum([0, *map(len, bare)])
        clients = [replace(client, unlabelled=np.arange(a, b, dtype=np.int64))
                   for client, a, b in zip(clients, ends[:-1], ends[1:], strict=True)]
        samples += [datum for share in bare for datum in share]
        domains = domains_of(samples)
    _refuse_empty(clients, selection, forgotten.get("clients", ()))
    tests = (global_test, new_test, *(other.indices for other in others))
    trains = [*(client.train for client in clients), server]
    alike = alike_words([client.train for client in clients])
    twins = duplicate_notes(trains, tests, samples, selection.records) if tested else []
    labels, sets = labels_of(samples), None
    notes = [
        *([alike] if alike else []), *data.notes, *selection.notes, *selection.class_notes(),
        *([] if alike else shared_notes([client.train for client in clients])),
        *(untrained_notes([(c.train, c.test) for c in clients], labels) if tested else ()),
        *target_notes, *twins,
    ]  # fmt: skip
    if data.label_names:
        labels, sets = number_sets(samples, len(data.label_names))
    return FederatedData(
        name=data.name,
        samples=samples,
        classnames=data.label_names or selection.classnames,
        new_classnames=[data.classnames[old] for old in new_map],
        templates=prompts,
        clients=clients,
        global_test=global_test,
        new_test=new_test,
        labels=labels,
        domains=domains,
        domain_names=data.domain_names,
        spec=spec,
        skipped=sorted(set(selection.skipped)),
        split_digest=split_digest(data),
        notes=notes,
        records=selection.records,
        others=others,
        server=server,
        available=int((selection.pool.labels["train"] >= 0).sum()),
        client_names=data.client_names if spec.kind == "natural" else [],
        groups=group_numbers(samples) if selection.pool.groups else None,
        label_sets=sets,
        forgotten=forgotten,
        captioned=data.captioned,
        doubts=_doubts(alike, data.captioned, [*twins, *({ONE_CLASS} & {*data.notes})]),
    )


def number_sets(items: Sequence[Datum], classes: int) -> tuple[IntArray, NDArray[np.uint8]]:
    """Return the number of each image's set of labels ``[n]``, and the sets ``[S, C]``, sorted."""
    found = sorted({d.labels or () for d in items})
    number = {labels: i for i, labels in enumerate(found)}
    table = np.zeros((len(found), classes), dtype=np.uint8)
    for row, labels in zip(table, found, strict=True):
        row[list(labels)] = 1
    rows = (number[d.labels or ()] for d in items)
    return np.fromiter(rows, dtype=np.int64, count=len(items)), table


def _check_keys(cfg: CfgNode, data: DatasetBase) -> None:
    """Refuse settings that ask for one class of each image where images have something else."""
    asked = {
        "DATASET.SUBSAMPLE_CLASSES": cfg.DATASET.SUBSAMPLE_CLASSES != "all",
        "DATASET.SERVER_HOLDOUT": bool(cfg.DATASET.get("SERVER_HOLDOUT", 0)),
        "DATASET.FEWSHOT_FILE": bool(cfg.DATASET.get("FEWSHOT_FILE", "")),
        "TEST.TARGETS": bool(cfg.TEST.TARGETS),
        "FED.HELD_OUT_DOMAIN": bool(cfg.FED.HELD_OUT_DOMAIN),
        "TEST.PER_CLASS_RESULT": bool(cfg.TEST.PER_CLASS_RESULT),
        "TEST.COMPUTE_CMAT": bool(cfg.TEST.COMPUTE_CMAT),
        "TEST.PER_IMAGE": bool(cfg.TEST.PER_IMAGE),
    }
    for key, given in asked.items():
        if given:
            refuse_targets(key, sets=data.label_names, captions=data.captioned)


def _others(
    selection: DatasetDraw, prompts: list[str], targets: Sequence[Target], start: int
) -> tuple[list[ExtraTest], list[Datum], list[str]]:
    """Return the test sets beside the run's own, their images (from index ``start``), and notes."""
    data, positions = selection.data, selection.unseen
    unseen = _shift(positions, positions, start)
    others: list[ExtraTest] = []
    if selection.held_out is not None:
        name = data.domain_names[selection.held_out]
        if not len(unseen):
            raise DataError(f"FED.HELD_OUT_DOMAIN {name}: it has no test image of the run's "
                            "classes; leave another domain out")
        others = [ExtraTest(name, DOMAIN, selection.classnames, prompts, unseen)]
    samples = [_relabel(data.test[i], selection.map) for i in positions]
    start += len(samples)
    tests, notes = target_tests(targets, start, selection.records, selection.policy)
    for other, images in tests:
        others.append(other)
        samples += images
    return others, samples, notes


def _doubts(alike: str, captioned: bool, others: Sequence[str]) -> list[str]:
    """Return ``FederatedData.doubts``; captions have no baseline AFL to speak of."""
    copies = [alike, *([] if captioned else [_COPIES])] if alike else []
    return _sentences([*copies, *others])


def _sentences(notes: Sequence[str]) -> list[str]:
    return [f"{note[:1].upper()}{note[1:]}." for note in notes]


def alike_words(trains: Sequence[IntArray]) -> str:
    """Return a sentence where alone and together see nearly the same images; else nothing.

    Most images are at several clients then, and a client has ``MOST_OF_ALL``, as where many shots
    are drawn of few images.

    Args:
        trains: as of ``shared_notes``.
    """
    held = np.concatenate(trains) if trains else np.empty(0, np.int64)
    counts = np.unique(held, return_counts=True)[1]
    twice, own = int((counts > 1).sum()), len(held) / max(len(trains), 1)
    if 2 * twice <= len(counts) or own < MOST_OF_ALL * len(counts):
        return ""
    return (
        f"the clients hold nearly the same images: {twice:,} of the {len(counts):,} training "
        f"images are at more than one client, and a client has {round(own):,} of them, so this "
        "cannot show whether federation pays (--shots -1 gives each image to one client)"
    )


def shared_notes(trains: Sequence[IntArray]) -> list[str]:
    """Return a note on training images that several clients hold, as few shots of all classes do.

    Args:
        trains: the training images of each client, as indices.
    """
    held = np.concatenate(trains) if trains else np.empty(0, np.int64)
    counts = np.unique(held, return_counts=True)[1]
    twice = int((counts > 1).sum())
    if not twice:
        return []
    return [
        f"clients draw from the same pool: {twice:,} of the {len(counts):,} training images are "
        "held by more than one client (--shots -1 gives each image to one client)"
    ]


def untrained_notes(pairs: Sequence[tuple[IntArray, IntArray]], labels: IntArray) -> list[str]:
    """Return a note on client test images of classes of which the client has no training image.

    Few shots bring it about: k images of a class cannot be cut among more than k clients, and its
    many test images can.

    Args:
        pairs: the training and the test images of each client, as indices into ``labels``.
    """
    images, strange, clients = 0, 0, 0
    for train, test in pairs:
        classes = set(labels[train].tolist())
        count = sum(label not in classes for label in labels[test].tolist())
        images, strange, clients = images + len(test), strange + count, clients + (count > 0)
    if not strange:
        return []
    return [
        f"{strange:,} of the clients' {images:,} test images, at {clients} of {len(pairs)} "
        "clients, are of classes of which that client has no training image"
    ]


def duplicate_notes(
    trains: Sequence[IntArray], tests: Sequence[IntArray], samples: Sequence[Datum],
    records: ImageRecords,
) -> list[str]:
    """Return a note on test images whose bytes are also a training image's."""
    keys = ["" if isinstance(s.array, np.ndarray) else records.content_key(s) for s in samples]
    trained = {keys[i] for train in trains for i in train} - {""}
    twins = [samples[i].key for indices in tests for i in indices if keys[i] in trained]
    if not twins:
        return []
    return [
        f"{len(twins):,} of {sum(map(len, tests)):,} test images have the same bytes as a training "
        f"image (first: {twins[0]}), so the numbers are too high for new images; they are kept, as "
        "the split has them"
    ]


def _shift(positions: IntArray, union: IntArray, start: int) -> IntArray:
    """Translate positions in a list to indices into the samples that hold ``union`` of it."""
    indices = (np.searchsorted(union, positions) + start).astype(np.int64)
    indices.setflags(write=False)
    return indices


def _relabel(datum: Datum, table: Mapping[int, int]) -> Datum:
    return replace(datum, label=table[datum.label])


def _one_domain(domains: IntArray, names: Sequence[str]) -> str:
    numbers = np.unique(domains)
    return names[int(numbers[0])] if len(numbers) == 1 and names else ""


def _refuse_empty(
    clients: Sequence[ClientSplit], selection: DatasetDraw, gone: Sequence[int]
) -> None:
    empty = [j for j, client in enumerate(clients)
             if not len(client.train) and not len(client.unlabelled) and j not in gone]
    if empty:
        bare = selection.classes_without("train")
        classes = f"; without any: class(es) {', '.join(bare[:MOST_NAMED])}" if bare else ""
        raise DataError(
            f"client(s) {', '.join(map(str, empty[:MOST_NAMED]))} would hold no training image"
            f"{classes}; use fewer FED.CLIENTS, or mend the images that do not decode"
        )
