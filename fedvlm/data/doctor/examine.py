"""The doctor: what of a data set is there, in which layout, and everything that is wrong with it.

A run stops at the first fault of a set; the doctor goes on and says all that it can find. It
changes nothing: no split is made, no image is rendered, no file of the user's is written.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core.errors import FedvlmError
from fedvlm.core.progress import Progress
from fedvlm.data.catalog import CATALOG, DatasetInfo, dataset_info
from fedvlm.data.datasets import (
    DATASET_REGISTRY,
    check_holders,
    compare_with_catalog,
    folder_of,
    load_dataset,
    pack_of,
    read_by_config,
    spells_layout,
    stem_of,
)
from fedvlm.data.datum import PARTS, DatasetBase, Finding
from fedvlm.data.doctor.checks import (
    ABSENT,
    BROKEN,
    BUILT_IN,
    PARTLY,
    PREPARED,
    READY,
    UNKNOWN,
    Checkup,
    ImageCheck,
    check_lists,
)
from fedvlm.data.get.annotations import READERS
from fedvlm.data.get.offers import offer_of
from fedvlm.data.image_records import records_of
from fedvlm.data.layouts import Layout, choose, layouts_of, nearest_layout, prepared_layouts
from fedvlm.data.locate import find_root, first_names, pack_root, packs_in, subfolders
from fedvlm.data.own.shape import look
from fedvlm.data.packs.pack import open_pack
from fedvlm.data.packs.place import read_pack

_FIRST = 5  # names in a message; wrong rows that get a finding each
PACK = "feature pack"


def examine(
    cfg: CfgNode, sample: int | None, progress: Progress | None = None
) -> Checkup:
    """Look at the set that ``cfg.DATASET`` names and return all that was found.

    Faults of the set are findings, never errors.

    Args:
        cfg: DATASET.ROOT, NAME and, for an own set, what describes it; CACHE_DIR.
        sample: how many images are decoded and hashed; None for all.
        progress: reports how many of them are read.

    Raises:
        DataError: DATASET.ROOT is neither a folder nor a feature pack.
    """
    pack, info = pack_root(cfg.DATASET.ROOT), dataset_info(cfg.DATASET.NAME)
    root = pack or find_root(cfg.DATASET.ROOT)
    check = Checkup(cfg.DATASET.NAME)
    if info is not None:
        sizes = {"train": info.train, "val": info.val, "test": info.test}
        check = Checkup(info.name, published_classes=info.classes, published_sizes=sizes)
    try:
        pack = pack or pack_of(cfg)
        if pack is not None:
            check.layout, check.folder, check.state = PACK, pack.name, READY
            data: DatasetBase | None = read_pack(cfg, pack)
            _note_pack(check, pack)
            sample = None  # nothing is decoded: the pack says what is known of each image
        elif info is None or spells_layout(info, cfg):
            data = _by_config(check, cfg, info, root)
        else:
            data = _by_layout(check, cfg, info, root)
        if data is not None:
            _check_data(check, data, info, cfg, sample, progress)
    except (FedvlmError, OSError) as error:  # a folder that may not be read, a DIR that leads out
        return Checkup(check.name, BROKEN, findings=[Finding("reading", str(error))])
    check.findings = list(dict.fromkeys(check.findings))
    if check.problems and check.state != PARTLY:
        check.state = BROKEN
    return check


def examine_unknown(root: Path) -> list[Checkup]:
    """Return a checkup of each folder below the root that is none of a known set.

    Names are read only: what the folder is, and how it is used.
    """
    layouts = [layout for info in CATALOG.values() for layout in layouts_of(info)]
    known = {place.split("/")[0] for layout in layouts
             for place in ([layout.folder] if layout.folder else layout.needs)}
    checks = []
    for name in subfolders(root):
        if name in known:
            continue
        get = f"fedvlm data add {shlex.quote(str(root / name))}"
        check = Checkup(name, UNKNOWN, folder=name, get=get)
        try:
            check.layout = look(root / name).what
        except (FedvlmError, OSError) as error:
            check.get = ""
            check.findings.append(Finding("unknown_folder", str(error), broken=False))
        checks.append(check)
    return checks


def examine_own_packs(root: Path) -> list[Checkup]:
    """Return a checkup of each feature pack in the root that is of no known set.

    Each is read once, to compare its content with its digest.
    """
    checks = []
    for path in packs_in(root):
        if dataset_info(stem_of(path)) is not None:
            continue
        check = Checkup(path.name, READY, layout=PACK, folder=path.name)
        try:
            _note_pack(check, path)
        except FedvlmError as error:
            check.state = BROKEN
            check.findings.append(Finding("reading", str(error)))
        checks.append(check)
    return checks


def _note_pack(check: Checkup, path: Path) -> None:
    """Say what a pack holds and what it is for."""
    about = open_pack(path).about
    check.classes = len(about.classnames)
    check.sizes = dict(zip(PARTS, about.sizes, strict=True))
    views = f", {len(about.views)} views of data seed {about.view_seed}" if about.views else ""
    text = (f"features of {about.name} by {about.backbone}{views}: for methods that need image "
            "features or text only; there are no images")
    check.findings.append(Finding("pack", text, broken=False))


def _by_layout(
    check: Checkup, cfg: CfgNode, info: DatasetInfo, root: Path
) -> DatasetBase | None:
    """Return the lists of a set in the first of its layouts that fits; None where none can be read.

    The state is that of a set in which nothing is broken.
    """
    folder = folder_of(info, cfg)
    prepared = prepared_layouts(info, root, folder, cfg)
    layout = choose((*layouts_of(info), *prepared), root, folder)
    if layout is None:
        _note_absence(check, info, nearest_layout(layouts_of(info), root, folder), root, folder)
        return None
    place = layout.place(root, folder)
    check.layout, check.folder = layout.name, _relative(place, root)
    check.state = PREPARED if layout in prepared else READY
    data = _read(check, lambda faults: layout.read(place, info, faults))
    if not layout.published:
        text = f"not the published split ({layout.name})"
        check.findings.append(Finding("own_split", text, broken=False))
    return data


def _by_config(
    check: Checkup, cfg: CfgNode, info: DatasetInfo | None, root: Path
) -> DatasetBase | None:
    """Return the lists of a set whose layout the config spells out, as ``_by_layout`` does."""
    node = cfg.DATASET
    check.folder = node.DIR or (info.folder if info else "")
    check.layout, check.state = node.FORMAT or "as the config says", READY
    if not check.folder and node.NAME in DATASET_REGISTRY:
        check.layout = "a class of your own"
        return _read(check, lambda _: load_dataset(cfg))
    place = root / check.folder
    if not place.is_dir():
        check.get, check.state = f"the folder {place} does not exist", ABSENT
        return None
    lacks = [n for n in (node.IMAGE_DIR, node.SPLIT_FILE) if n and not (place / n).exists()]
    if lacks:
        missing = _missing([f"{check.folder}/{name}" for name in lacks], "its config")
        check.findings.append(missing)
        check.state = PARTLY
        return None
    return _read(check, lambda faults: read_by_config(cfg, root, faults))


def _note_absence(
    check: Checkup, info: DatasetInfo, best: Layout, root: Path, folder: str
) -> None:
    """Note that nothing is there, or what the nearest layout lacks."""
    place = best.place(root, folder)
    check.layout, check.folder = best.name, _relative(place, root)
    check.get, check.page = _how_to_get(info)
    if not place.is_dir() or place == root:
        check.state = BUILT_IN if info.builtin else ABSENT
        return
    guest = _guest(info, place, root)
    if guest:
        text = f"{place} holds {guest}, which uses the same folder"
        check.findings.append(Finding("shared_folder", text, broken=False))
        return
    check.state = PARTLY
    check.findings.append(_missing(best.missing(root, folder), f"layout '{best.name}'"))
    if info.name in READERS and (place / info.image_dir).is_dir():
        check.get = (f"the published split from {info.source}, or make one: fedvlm data prepare "
                     f"{info.name} --root {root}")


def _guest(info: DatasetInfo, place: Path, root: Path) -> str:
    """Return another known set that is there in this folder (DomainNet has two), or nothing."""
    for other in CATALOG.values():
        layout = choose(layouts_of(other), root) if other is not info else None
        if layout is not None and place != root and layout.place(root) == place:
            return other.name
    return ""


def _missing(names: Sequence[str], of: str) -> Finding:
    verb = "is" if len(names) == 1 else "are"
    text = f"{first_names(names, _FIRST)} {verb} missing ({of})"
    return Finding("missing_parts", text, len(names))


def _how_to_get(info: DatasetInfo) -> tuple[str, str]:
    """Return how a set is got, in words, and the page where it is got by hand."""
    if info.builtin:
        return "rendered by the first run that needs it", ""
    offer = offer_of(info.name, info.source)
    if offer.pieces is not None:
        return f"fedvlm data download {info.name} ({offer.size:g} GB)", ""
    return f"by hand from {offer.page}", offer.page


def _read(
    check: Checkup, reader: Callable[[list[str]], DatasetBase]
) -> DatasetBase | None:
    """Return what a reader gives, and note each wrong row that it left out, or why it ended."""
    faults: list[str] = []
    data = None
    try:
        data = reader(faults)
    except (FedvlmError, OSError) as error:
        faults.append(str(error))
    faults = list(dict.fromkeys(faults))
    check.findings += [Finding("reading", text) for text in faults[:_FIRST]]
    if len(faults) > _FIRST:
        more = len(faults) - _FIRST
        file = faults[0].partition(": ")[0]
        check.findings.append(Finding("reading", f"{more:,} more invalid rows in {file}", more))
    if data is None:
        text = "reading stopped there; fix this and run doctor again to find other faults"
        check.findings.append(Finding("not_checked", text, broken=False))
    return data


def _check_data(
    check: Checkup, data: DatasetBase, info: DatasetInfo | None, cfg: CfgNode,
    sample: int | None, progress: Progress | None,
) -> None:
    """Check the lists, then the image files."""
    lists, images = data.parts, data.all()
    check.sizes = {part: len(lists[part]) for part in PARTS}
    check.classes = len(data.label_names or {datum.label for datum in images})
    check.unit = "labels" if data.label_names else "topics" if data.captioned else ""
    check.findings += check_lists(lists, bool(info and info.test_only), data.domain_names)
    try:
        check_holders(data, cfg.DATASET.get("CLIENTS_BY", ""), cfg.DATASET.get("GROUPS", ""))
    except FedvlmError as error:
        check.findings.append(Finding("clients", str(error)))
    trained = {datum.key for datum in data.train_x}
    check.leaks = sum(len(trained & {d.key for d in lists[part]}) for part in ("val", "test"))
    if info is not None:
        check.findings += _remarks("published", info.name, compare_with_catalog(info, data))
    said = {finding.text for finding in check.findings}
    remarks = _remarks("note", check.name, data.notes)
    check.findings += [remark for remark in remarks if remark.text not in said]
    drop = info.drop if info else ()
    try:
        files = ImageCheck(lists, records_of(images, cfg), sample, progress, drop,
                           cfg.DATASET.ON_CORRUPT)
    except (FedvlmError, OSError) as error:  # a disk that fails, files that go meanwhile
        check.findings.append(Finding("reading_images", str(error)))
        return
    check.images, check.looked = len(files.images), len(files.sample)
    check.unreadable, check.modes = len(files.broken), files.modes
    check.findings += files.findings
    if files.twins:
        check.leaks += len(files.twins)
        text = (f"{len(files.twins)} test image(s) with the bytes of a training image, among the "
                f"{check.looked:,} looked at (first: {files.twins[0]})")
        # A published split is what it is: runs keep such images and say so.
        check.findings.append(Finding("leak_bytes", text, len(files.twins), broken=info is None))


def _remarks(check: str, name: str, notes: Sequence[str]) -> list[Finding]:
    return [Finding(check, note.removeprefix(f"{name}: "), broken=False) for note in notes]


def _relative(place: Path, root: Path) -> str:
    return "." if place == root else place.relative_to(root).as_posix()
