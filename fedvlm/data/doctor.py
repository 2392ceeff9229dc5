"""The doctor: what of a data set is there, in which layout, and everything that is wrong with it.

A run stops at the first fault of a set; the doctor goes on and says all that it can find. It
changes nothing: no split is made, no image is rendered, no file of the user's is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core.errors import FedvlmError
from fedvlm.core.files import records_dir
from fedvlm.data.catalog import CATALOG, DatasetInfo, compare, dataset_info
from fedvlm.data.datasets import DATASET_REGISTRY, folder_of, is_told, load_dataset, read_as_told
from fedvlm.data.datum import PARTS
from fedvlm.data.doctor_checks import (
    ABSENT,
    BROKEN,
    BUILT_IN,
    PARTLY,
    PREPARED,
    READY,
    Checkup,
    Finding,
    Look,
    Looked,
    check_lists,
    leaks,
    some,
)
from fedvlm.data.federated import common_folder
from fedvlm.data.formats.coop_split import read_split
from fedvlm.data.formats.folders import Tree
from fedvlm.data.get.annotations import READERS
from fedvlm.data.get.download import offer_of
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.layouts import Layout, choose, layouts_of, nearest, prepared_layouts
from fedvlm.data.locate import find_root

_NAMED = 5  # wrong rows that get a sentence each


def examine(cfg: CfgNode, look: Look) -> Checkup:
    """Look at the set that ``cfg.DATASET`` names and return all that was found.

    Faults of the set are findings, never errors.

    Args:
        cfg: DATASET.ROOT, NAME and, for an own set, what describes it; CACHE_DIR.
        look: how many images are decoded.

    Raises:
        DataError: DATASET.ROOT is not a folder.
    """
    root, info = find_root(cfg.DATASET.ROOT), dataset_info(cfg.DATASET.NAME)
    try:
        if info is None or is_told(info, cfg):
            return _own(cfg, info, root, look)
        return _known(cfg, info, root, look)
    except (FedvlmError, OSError) as error:  # a folder that may not be read, a DIR that leads out
        name = info.name if info else cfg.DATASET.NAME
        return Checkup(name, BROKEN, findings=[Finding("reading", str(error))])


def _known(cfg: CfgNode, info: DatasetInfo, root: Path, look: Look) -> Checkup:
    """Look at a set in the first of its layouts that fits."""
    check = _checkup(info)
    folder = folder_of(info, cfg)
    published = layouts_of(info)
    more = prepared_layouts(info, root, folder, cfg)
    found = choose((*published, *more), root, folder)
    if found is None:
        return _not_there(check, info, published, root, folder)
    place = found.place(root, folder)
    check.layout, check.folder = found.name, _below(place, root)
    tree = _read(check, found, place, info)
    if not found.published:
        text = f"not the published split ({found.name})"
        check.findings.append(Finding("own_split", text, broken=False))
    if tree is not None:
        _look(check, tree, info, cfg, look)
    return _judged(check, PREPARED if found in more else READY)


def _own(cfg: CfgNode, info: DatasetInfo | None, root: Path, look: Look) -> Checkup:
    """Look at a set whose layout the config tells."""
    node = cfg.DATASET
    check = _checkup(info) if info else Checkup(node.NAME)
    folder = node.DIR or (info.folder if info else "")
    place = root / folder
    check.folder, check.layout = folder, node.FORMAT or "as the config says"
    if not folder and node.NAME in DATASET_REGISTRY:
        check.layout = "a class of your own"
    elif not place.is_dir():
        check.get = f"the folder {place} does not exist"
        return check
    lacks = [n for n in (node.IMAGE_DIR, node.SPLIT_FILE) if n and not (place / n).exists()]
    if lacks:
        check.findings.append(_lacking([f"{folder}/{name}" for name in lacks], "its config"))
        return _judged(check, PARTLY)
    try:
        if check.layout == "a class of your own":
            data = load_dataset(cfg)
            tree: Tree | None = Tree({p: data.part(p) for p in PARTS}, data.domain_names,
                                     data.notes)
        else:
            tree = read_as_told(cfg, root)
    except (FedvlmError, OSError) as error:
        file = place / node.SPLIT_FILE if node.SPLIT_FILE.endswith(".json") else None
        tree = _again(check, error, file, place / node.IMAGE_DIR)
    if tree is not None:
        _look(check, tree, info, cfg, look)
    return _judged(check, READY)


def _checkup(info: DatasetInfo) -> Checkup:
    sizes = {"train": info.train, "val": info.val, "test": info.test}
    return Checkup(info.name, published_classes=info.classes, published_sizes=sizes)


def _not_there(
    check: Checkup, info: DatasetInfo, layouts: Sequence[Layout], root: Path, folder: str
) -> Checkup:
    """Say that nothing is there, or what is missing."""
    best = nearest(layouts, root, folder)
    place = best.place(root, folder)
    check.layout, check.folder = best.name, _below(place, root)
    check.get, check.page = _how_to_get(info)
    if not place.is_dir() or place == root:
        check.state = BUILT_IN if info.builtin else ABSENT
        return check
    guest = _held_by_another(info, place, root)
    if guest:
        text = f"{place} holds {guest}, which uses the same folder"
        check.findings.append(Finding("shared_folder", text, broken=False))
        return check
    check.findings.append(_lacking(best.missing(root, folder), f"layout '{best.name}'"))
    if info.name in READERS and (place / info.image_dir).is_dir():
        check.get = (f"the published split from {info.source}, or make one: fedvlm data prepare "
                     f"{info.name} --root {root}")
    return _judged(check, PARTLY)


def _held_by_another(info: DatasetInfo, place: Path, root: Path) -> str:
    """Return another known set that is there in this folder (DomainNet has two), or nothing."""
    for other in CATALOG.values():
        found = choose(layouts_of(other), root) if other is not info else None
        if found is not None and place != root and found.place(root) == place:
            return other.name
    return ""


def _lacking(names: Sequence[str], of: str) -> Finding:
    verb = "is" if len(names) == 1 else "are"
    return Finding("missing_parts", f"{some(names)} {verb} missing ({of})", len(names))


def _how_to_get(info: DatasetInfo) -> tuple[str, str]:
    """Return how a set is got, in words, and the page where it is got by hand."""
    if info.builtin:
        return "runs render it when they need it", ""
    offer = offer_of(info.name, info.source)
    if offer.pieces is not None:
        return f"fedvlm data download {info.name} ({offer.size:g} GB)", ""
    return f"by hand from {offer.page}", offer.page


def _read(check: Checkup, found: Layout, place: Path, info: DatasetInfo) -> Tree | None:
    try:
        return found.read(place, info)
    except (FedvlmError, OSError) as error:
        files = [place / need for need in found.needs if need.endswith(".json")]
        return _again(check, error, files[0] if files else None, place / info.image_dir)


def _again(check: Checkup, error: Exception, file: Path | None, images: Path) -> Tree | None:
    """Note why reading ended; read what a split file's good rows say, if that is where it ended."""
    faults: list[str] = []
    tree = None
    if file is not None:
        try:
            tree = read_split(file, images, faults).tree()
        except FedvlmError as again:
            faults.append(str(again))
    faults = list(dict.fromkeys(faults)) or [str(error)]
    check.findings += [Finding("reading", text) for text in faults[:_NAMED]]
    if len(faults) > _NAMED:
        more = len(faults) - _NAMED
        check.findings.append(Finding("reading", f"{more:,} more rows of {file} are wrong", more))
    if tree is None:
        text = "reading ended there; what else may be wrong shows when this is mended"
        check.findings.append(Finding("not_checked", text, broken=False))
    return tree


def _look(check: Checkup, tree: Tree, info: DatasetInfo | None, cfg: CfgNode, look: Look) -> None:
    """Check the lists, then the image files."""
    lists = tree.parts
    every = [datum for part in PARTS for datum in lists[part]]
    check.sizes = {part: len(lists[part]) for part in PARTS}
    check.classes = len({datum.label for datum in every})
    check.findings += check_lists(lists, bool(info and info.test_only))
    check.leaks = sum(f.count for f in leaks(lists) if f.broken)
    if info is not None:
        base = sum(datum.label < info.base for datum in lists["test"])
        domains = Counter(tree.domain_names[d.domain] for d in every if tree.domain_names)
        notes = compare(info, check.classes, check.sizes, base, domains)
        check.findings += _remarks("published", info.name, notes)
    check.findings += _remarks("note", check.name, tree.notes)
    folder = common_folder(every)
    records = ImageRecords.of_folder(folder, records_dir(cfg)) if folder else ImageRecords(None)
    try:
        seen = Looked(lists, records, look, info.drop if info else ())
    except (FedvlmError, OSError) as error:  # a disk that fails, files that go meanwhile
        check.findings.append(Finding("reading_images", str(error)))
        return
    check.images, check.looked = len(seen.every), len(seen.sample)
    check.unreadable, check.modes = len(seen.broken), seen.modes
    check.findings += seen.findings
    if seen.twins:
        check.leaks += len(seen.twins)
        text = (f"{len(seen.twins)} test image(s) with the bytes of a training image, among the "
                f"{check.looked:,} looked at (first: {seen.twins[0]})")
        # A published split is what it is: runs keep such images and say so.
        check.findings.append(Finding("leak_bytes", text, len(seen.twins), broken=info is None))


def _remarks(check: str, name: str, notes: Sequence[str]) -> list[Finding]:
    return [Finding(check, note.removeprefix(f"{name}: "), broken=False) for note in notes]


def _judged(check: Checkup, good: str) -> Checkup:
    """Return the checkup with its state: ``good`` where nothing is broken."""
    unique = list(dict.fromkeys(check.findings))
    bad = PARTLY if good == PARTLY else BROKEN
    state = bad if any(found.broken for found in unique) else good
    return replace(check, state=state, findings=unique)


def _below(place: Path, root: Path) -> str:
    return "." if place == root else place.relative_to(root).as_posix()
