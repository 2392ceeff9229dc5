"""The parts of a set: their usual names, and what is done where there is no test part.

Where validation images are there but no test images, they become the test images: a set published
as train and val has its val for that. Where there are training images only, a share of each class
is drawn as test images by DATA_SEED, if the config says how large it is; without it the set is
refused. The set's notes name both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.rng import numpy_stream
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.whole_groups import cut_whole

PART_NAMES = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
USUAL_SHARE = 0.3  # of test images: CoOp's
OWN_SHARES = (0.5, 0.2, 0.3)  # of this project's own cut: CoOp's


def complete(
    lists: Mapping[str, Sequence[Datum]], info: CopyInfo, where: str, domain: str = ""
) -> tuple[dict[str, list[Datum]], list[str]]:
    """Return the three lists with test images, and notes on where these come from.

    Args:
        info: its ``test_share`` and ``seed`` draw test images where there are none.
        where: the set's folder or table, for messages.
        domain: whose lists they are; empty for the whole set.

    Raises:
        DataError: training images only, and no share of them for the test.
    """
    parts = {part: list(lists[part]) for part in PARTS}
    of = f"domain '{domain}'" if domain else "the set"
    if not parts["train"] and not info.whole:
        return parts, []
    if not parts["train"]:
        raise DataError(f"{where}: there are no training images; train and test are needed")
    if parts["test"]:
        unused = "DATASET.TEST_SHARE is not used: there are test images"
        return parts, [f"{of}: {unused}"] if info.test_share else []
    if parts["val"] and not info.whole:
        return parts, []
    if parts["val"]:
        note = f"{of} has no test part: val is the test list, and there is no validation"
        return parts | {"test": parts["val"], "val": []}, [note]
    if not info.test_share:
        raise DataError(
            f"{where} has train but no 'test' folder, list or images; set DATASET.TEST_SHARE "
            f"{USUAL_SHARE} to draw that share of each class as test images by DATA_SEED"
        )
    share = info.test_share
    train, test = draw_test(parts["train"], share, info.seed)
    note = (f"{of} has training images only: {share:g} of each class are its test images, "
            f"drawn by DATA_SEED {info.seed}; not a published split")
    return {"train": train, "val": [], "test": test}, [note]


def join_test(data: DatasetBase, share: float, seed: int) -> None:
    """Join a set's training and test images and draw its test images anew, in place.

    Args:
        share: of each class (and of each client's class, where clients are known).
        seed: DATA_SEED.

    Raises:
        ConfigError: some known clients have test images only, and would not be clients.
    """
    bare = {d.client for d in data.parts["test"]} - {*data.client_names, ""}
    if bare:
        raise ConfigError(
            f"DATASET.JOIN_TEST: {len(bare)} of {len(bare) + len(data.client_names)} clients of "
            f"{data.name} have test images only, so that the run does not know them as clients; "
            "give each a training image, or leave DATASET.JOIN_TEST out")
    train, test = draw_test([*data.parts["train"], *data.parts["test"]], share, seed)
    data.parts |= {"train": train, "test": test}
    data.notes.append(f"training and test images are joined: {share:g} of each class are test "
                      f"images, drawn by DATA_SEED {seed} (DATASET.JOIN_TEST)")


def draw_test(
    items: Sequence[Datum], share: float, seed: int
) -> tuple[list[Datum], list[Datum]]:
    """Return training and test images; each class and domain gives its share, both in order.

    A class of two images or more gives at least one and keeps at least one. Where clients are
    known, each client's class gives its share; groups (a patient's images) are given whole.
    """
    if any(d.group is not None for d in items):
        train, test = cut_whole(items, (1 - share, share), seed)
        return train, test
    groups: dict[tuple[str, int, int], list[int]] = {}
    order = sorted(range(len(items)), key=lambda i: items[i].key)
    for i in order:
        groups.setdefault((items[i].client, items[i].domain, items[i].label), []).append(i)
    taken: set[int] = set()
    for (client, domain, label), positions in sorted(groups.items()):
        n = len(positions)
        many = min(max(round(share * n), 1), n - 1)
        whose = (client,) if client else ()
        stream = numpy_stream(seed, "test-share", *whose, domain, label)
        taken |= {positions[i] for i in stream.permutation(n)[:many]}
    return (
        [datum for i, datum in enumerate(items) if i not in taken],
        [datum for i, datum in enumerate(items) if i in taken],
    )
