"""What a run's notes say of its data: classes that lack images, tests that training does not fit.

Nothing is changed here; a note goes into the log and the results.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedvlm.data.datum import Datum, IntArray
from fedvlm.data.draw import Setting
from fedvlm.data.fewshot import short_classes
from fedvlm.data.image_records import ImageRecords

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
