"""Test sets of the global model beside the run's own: the domain left out, and other data sets.

A domain left out (``FED.HELD_OUT_DOMAIN``) has the run's classes. A target of transfer
(``TEST.TARGETS``) has class names and a prompt of its own; all its classes and all its test images
are classified, whatever the run's classes are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from yacs.config import CfgNode

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.config.read import find_config, lookup
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.catalog import dataset_info
from fedvlm.data.datasets import load_dataset, templates
from fedvlm.data.datum import PARTS, DatasetBase, Datum, IntArray, refuse_targets
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import decodable
from fedvlm.data.partition.index_file import canonical_hash

DOMAIN, DATASET = "domain", "dataset"


@dataclass(frozen=True, eq=False)
class ExtraTest:
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


def load_targets(cfg: CfgNode, run_set: str) -> list[Target]:
    """Read the lists of the sets that ``TEST.TARGETS`` names; no image is opened.

    Args:
        run_set: name of the run's own set.

    Raises:
        ConfigError: an unknown name, one given twice, or the run's own set.
        DataError: a target's lists are missing or inconsistent, or it has no test images.
    """
    targets: list[Target] = []
    for word in cfg.TEST.TARGETS:
        node = set_config(str(word), cfg)
        refuse_targets(
            f"TEST.TARGETS {word}", sets=node.DATASET.LABELS, captions=node.DATASET.CAPTIONS)
        target = Target(load_dataset(node), templates(node))
        name = target.data.name
        if name == run_set:
            raise ConfigError(
                f"TEST.TARGETS names {word}, the run's own set: its test images are `global` "
                "already; drop it"
            )
        if name in [other.data.name for other in targets]:
            raise ConfigError(f"TEST.TARGETS names {name} twice ({word}); once is enough")
        if not target.data.test:
            raise DataError(f"TEST.TARGETS {word}: {name} has no test images; drop it")
        targets.append(target)
    return targets


def set_config(word: str, cfg: CfgNode, what: str = "TEST.TARGETS") -> CfgNode:
    """Return the config of a set by the name of its file, a file, or a name the catalog has.

    Args:
        cfg: of the run, whose root and cache hold for the other set too.
        what: names it, for messages.

    Raises:
        ConfigError: an unknown name.
    """
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
        raise ConfigError(f"{what}: {mistake}") from None


def target_tests(
    targets: Sequence[Target], start: int, records: ImageRecords, policy: str
) -> tuple[list[tuple[ExtraTest, list[Datum]]], list[str]]:
    """Return the targets' test sets with their images, and what is to be said of them.

    Args:
        start: index of the first of these images in ``FederatedData.samples``.
        policy: what is done about images that do not decode, ``skip`` or ``refuse``.

    Raises:
        DataError: images that do not decode under ``refuse``, or none that does.
    """
    tests: list[tuple[ExtraTest, list[Datum]]] = []
    notes: list[str] = []
    for target in targets:
        data = target.data
        whole, broken = decodable(data.name, data.test, records, policy)
        images = [replace(d, domain=-1) for d in whole]
        if not images:
            raise DataError(f"TEST.TARGETS {data.name}: none of its test images decodes")
        indices = np.arange(start, start + len(images), dtype=np.int64)
        indices.setflags(write=False)
        start += len(images)
        test = ExtraTest(
            data.name, DATASET, data.classnames, target.templates, indices, split_digest(data)
        )
        tests.append((test, images))
        notes += [n if n.startswith(data.name) else f"{data.name}: {n}" for n in data.notes]
        notes += [f"{data.name}: {note}" for note in broken]
    return tests, [*notes, *_cost([test for test, _ in tests])]


def _cost(targets: Sequence[ExtraTest]) -> list[str]:
    if not targets:
        return []
    images = sum(len(target.indices) for target in targets)
    sizes = ", ".join(f"{t.name} ({len(t.classnames)} classes)" for t in targets)
    return [
        f"TEST.TARGETS: {images:,} more test images, of {sizes}, are encoded; they are classified "
        "at the untrained start and after the last round only"
    ]


def split_digest(data: DatasetBase) -> str:
    """Return the sha256 of a set's lists: keys, labels, captions, domains and all names."""
    rows = {part: [[d.key, d.label, d.domain, *([] if d.labels is None else [d.labels]),
                    *([d.captions] if d.captions else [])]
                   for d in data.parts[part]] for part in PARTS}
    return canonical_hash([data.classnames, data.domain_names, rows])
