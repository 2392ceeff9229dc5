"""Where a set's files lie under the root: the table of layouts, tried in order; the first fits.

A layout names what it needs on disk and its reader, a module of ``formats/`` that is imported when
a set is read: which layout a folder has is answered from names alone. The layout that was used is
in the set's notes, and where none fits the error names the nearest one and what it lacks. Lists
that others publish go before trees, since a tree is cut by this project.

Splits that ``fedvlm data prepare`` made are tried after a set's published layouts. Their name is
never CoOp's, so that no later run takes such a split for the published one. Of their two places the
one beside the images goes first; the one in the cache is bound to the folder it was made of, so two
roots never share a split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.core.errors import did_you_mean
from fedvlm.core.plugins import Plugins
from fedvlm.core.repository import cache_dir
from fedvlm.data.catalog import CATALOG, DatasetInfo
from fedvlm.data.datum import PARTS, DatasetBase
from fedvlm.data.locate import check_relative, describe_content, first_names, listing


@dataclass(frozen=True)
class CopyInfo:
    """What a reader is told of one copy of a set; it uses the fields that its format has.

    Attributes:
        name: of the set.
        images: the folder that the images' paths are relative to.
        files: split file or tables.
        renames: folder or label to class name; ``drop``: folders that are not read.
        domains: names by number; ``folders``: the domains as the files spell them, in this order,
            empty for all that are there.
        classes: those of the set, where a tree may hold more; empty for all that are there.
        parts: folder or list of each part, ``{}`` is the domain.
        first: number of the first label of a list.
        usual_folder: of the set, as its authors' lists call it.
        test_share: of each class's training images that are drawn as test images where the set has
            none (DATASET.TEST_SHARE) by ``seed`` (DATA_SEED); 0 draws none.
        unpacked: folder for images that a table holds itself; None unpacks none.
        faults: takes an error message for each wrong row, which is then left out (the doctor's
            way); None ends the reading at the first.
        clients_by, groups: columns (``hospital,scanner``), or a pattern of the images' paths, that
            say who holds an image and what it belongs to; empty for none.
        columns: what other columns mean (DATASET.COLUMNS).
        labels: columns that say an image's set of labels (DATASET.LABELS); empty for one class.
        captions: columns of an image's captions (DATASET.CAPTIONS); empty for none.
        topics: groups of captions that stand for classes where no column does (DATASET.TOPICS).
        unlabelled: the folder of images without a label (DATASET.UNLABELLED); empty for none.
        whole: False where a trained model looks at the images: then no part, class or label has to
            be there, and validation images stay what they are.
    """

    name: str
    images: Path
    files: tuple[Path, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    drop: Sequence[str] = ()
    domains: Sequence[str] = ()
    folders: Sequence[str] = ()
    classes: Sequence[str] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    first: int = 0
    usual_folder: str = ""
    test_share: float = 0.0
    seed: int = 0
    unpacked: Path | None = None
    faults: list[str] | None = None
    clients_by: str = ""
    groups: str = ""
    columns: str = ""
    labels: str = ""
    captions: str = ""
    topics: int = 1
    unlabelled: str = ""
    whole: bool = True


Reader = Callable[[Path, CopyInfo], DatasetBase]
_READERS = Plugins("fedvlm.data.formats", "READER", "reader")


def reader_of(name: str) -> Reader:
    """Return ``read_<name>`` of the file of ``formats/`` that is marked ``READER = "<name>"``."""
    reader: Reader = getattr(_READERS.load(name), f"read_{name}")
    return reader


@dataclass(frozen=True)
class Layout:
    """One layout in which a data set is kept on disk.

    Attributes:
        name: in notes and for the doctor: ``CoOp split file``, ``FedBN pickles``.
        folder: below the root; ``DATASET.DIR`` replaces it.
        needs: files and folders that must be there, below ``folder`` or as absolute paths; what
            ends in ``/`` must be a folder, what begins with ``!`` must not be there.
        reader: of the lists (``reader_of``); it opens no image.
        image_dir, split_file: below ``folder``, where they differ from the catalog's.
        options: fields of ``CopyInfo`` that differ from the catalog's.
        published: False where the split is not the published one; results carry it.
    """

    name: str
    folder: str
    needs: tuple[str, ...]
    reader: str
    image_dir: str | None = None
    split_file: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    published: bool = True

    def place(self, root: Path, folder: str = "") -> Path:
        """Return the set's folder under the root."""
        relative = folder or self.folder
        check_relative(relative, "DATASET.DIR")
        return root / relative

    def missing(self, root: Path, folder: str = "") -> list[str]:
        """Return what of ``needs`` is not there, as paths below the root; the folder if that is."""
        place = self.place(root, folder)
        if not place.is_dir():
            return [place.relative_to(root).as_posix()]
        lacks = []
        for need in self.needs:
            if not _is_there(place, need):
                path = place / need.removeprefix("!")
                name = (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()
                lacks.append(f"a tree without {name}" if need.startswith("!") else name)
        return lacks

    def read(self, place: Path, info: DatasetInfo, faults: list[str] | None = None) -> DatasetBase:
        """Return the lists of a set in its folder, not checked, with the notes of the reader.

        Raises:
            DataError: a file is not what it should be.
        """
        image_dir = info.image_dir if self.image_dir is None else self.image_dir
        split = info.split_file if self.split_file is None else self.split_file
        copy = CopyInfo(
            info.name, place / image_dir, (place / split,) if split else (), info.renames,
            info.drop, tuple(info.domains), parts=info.parts, usual_folder=info.folder,
            faults=faults,
        )
        data = reader_of(self.reader)(place, replace(copy, **self.options))
        if self.reader == "cifar":
            data.notes.clear()  # they would name the layout twice
        return data


def _is_there(place: Path, need: str) -> bool:
    if need.startswith("!"):
        return not (place / need[1:]).exists()
    return (place / need).is_dir() if need.endswith("/") else (place / need).exists()


def layouts_of(info: DatasetInfo) -> tuple[Layout, ...]:
    """Return the layouts of a set in the order in which they are tried."""
    return LAYOUTS[info.name]


def choose(layouts: Sequence[Layout], root: Path, folder: str = "") -> Layout | None:
    """Return the first layout whose needs are all there; None where none fits."""
    return next((layout for layout in layouts if not layout.missing(root, folder)), None)


def nearest_layout(layouts: Sequence[Layout], root: Path, folder: str = "") -> Layout:
    """Return the layout of which most is there: its folder first, then the fewest needs missing."""

    def distance(layout: Layout) -> tuple[bool, int]:
        place = layout.place(root, folder)
        return place == root or not place.is_dir(), len(layout.missing(root, folder))

    return min(layouts, key=distance)


def explain_absence(
    info: DatasetInfo, layouts: Sequence[Layout], root: Path, folder: str
) -> str:
    """Return what the nearest layout lacks, what is there instead, and where to get the set."""
    best = nearest_layout(layouts, root, folder)
    place = best.place(root, folder)
    if not place.is_dir():
        names = listing(root)
        content = first_names(names, 8) or "nothing"
        near = did_you_mean(place.relative_to(root).parts[0], names)
        near = near and f"{near} (DATASET.DIR says where it lies)"
        if root.name == place.name:
            near = f"; that name is {root} itself: give the folder above it as --root"
        what = f"the folder {place} does not exist; found in {root}: {content}{near}"
    else:
        lacks = ", ".join(best.missing(root, folder))
        content = describe_content(place)
        what = f"{lacks} missing in {root} (layout '{best.name}'); found there: {content}"
    others = [layout.name for layout in layouts if layout is not best and layout.published]
    also = f"; other layouts that are known: {', '.join(others)}" if others else ""
    source = f"; get it from {info.source}" if info.source else ""
    return f"{info.name}: {what}{also}{source}{_prepare_hint(info, place, root, folder)}"


def _prepare_hint(info: DatasetInfo, place: Path, root: Path, folder: str) -> str:
    """Return how to make a split where the images are there and only the split file is not."""
    if not info.split_file or info.builtin or not (place / info.image_dir).is_dir():
        return ""
    option = f" --dir {folder}" if folder else ""
    return f"; or make a split: python -m fedvlm data prepare {info.name} --root {root}{option}"


# ---- splits of fedvlm data prepare ----------------------------------------------------------
def prepared_name(name: str) -> str:
    """Return the file name of a prepared split: ``split_fedvlm_<Name>.json``."""
    return f"split_fedvlm_{name}.json"


def cached_split_path(name: str, folder: Path, cfg: CfgNode | None = None) -> Path:
    """Return where the cache keeps the split prepared of a set's folder (``ROOT/<folder>``)."""
    place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return cache_dir(cfg) / "fedvlm" / "splits" / place / prepared_name(name)


def prepared_layouts(
    info: DatasetInfo, root: Path, folder: str, cfg: CfgNode
) -> tuple[Layout, ...]:
    """Return the layouts of a prepared split: beside the images, then in the cache.

    Args:
        root: DATASET.ROOT.
        folder: DATASET.DIR; empty for the set's own.
        cfg: says where the cache is.
    """
    if not info.split_file or info.builtin:
        return ()
    cached = cached_split_path(info.name, root / (folder or info.folder), cfg)
    return (_split(info, "prepared split beside the images", prepared_name(info.name), False),
            _split(info, "prepared split in the cache", str(cached), False))


# ---- the table ------------------------------------------------------------------------------
TINY_IMAGENET = Layout(
    "Tiny-ImageNet as it is unpacked", "",
    ("words.txt", "wnids.txt", "val/val_annotations.txt", "train/", "val/images/"),
    "tiny_imagenet",
)
_CIFAR_FOLDERS = {
    "Cifar10": ("cifar-10-batches-py", "batches.meta"),
    "Cifar100": ("cifar-100-python", "meta"),
}
_AIRCRAFT = {part: f"images_variant_{part}.txt" for part in PARTS}
_HOME = ("Art", "Clipart", "Product", "Real World")
_TITLED = ("Art", "Clipart", "Product", "Real_World")
# FedBN's ten of DomainNet's 345 classes.
_TEN = ("bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill",
        "wine_glass", "zebra")  # fmt: skip


def _split(info: DatasetInfo, name: str, file: str, published: bool = True) -> Layout:
    """Return the layout of a split file of CoOp's form."""
    needs = tuple(n for n in (info.image_dir, file) if n)
    return Layout(name, info.folder, needs, "coop", split_file=file, published=published)


def _single_domain(info: DatasetInfo) -> tuple[Layout, ...]:
    """Return the layouts of a set with one domain, in the order in which they are tried."""
    home, images = info.folder, info.image_dir
    if info.form == "cifar":  # class folders, or torchvision's pickles in three places
        below, meta = _CIFAR_FOLDERS[info.name]
        return (
            Layout("class folders", home, ("train/", "test/"), "folders"),
            Layout("torchvision pickles", home, (f"{below}/{meta}",), "cifar"),
            Layout("torchvision pickles in the folder itself", home, (meta,), "cifar"),
            Layout("torchvision pickles below the root", "", (f"{below}/{meta}",), "cifar"),
        )
    if info.form == "aircraft":  # CoOp's folder, or the archive as it is unpacked
        needs, options = (images, "variants.txt", *_AIRCRAFT.values()), {"parts": _AIRCRAFT}
        return (
            Layout("CoOp folders", home, needs, "aircraft", options=options),
            Layout("archive as unpacked", "fgvc-aircraft-2013b/data", needs, "aircraft",
                   options=options),
        )
    if info.form == "imagenet":  # CoOp's folders; ImageNet itself also as torchvision makes it
        needs = tuple(f"{images}/{below}".rstrip("/") for below in info.parts.values())
        coop = Layout("CoOp folders", home, needs, "imagenet")
        bare = Layout("torchvision's train and val", home, tuple(info.parts.values()), "imagenet",
                      image_dir="")
        return (coop, bare) if info.parts.get("train") else (coop,)
    if info.form == "domains":
        return (Layout("domain tree", home, (), "domains"),)
    return (_split(info, "CoOp split file", info.split_file),)


def _lists(
    set_name: str, name: str, folder: str, files: dict[str, str], images: str = "", first: int = 0
) -> Layout:
    """Return the layout of lists in text; ``files`` gives each part's, ``{}`` is the domain."""
    domains = CATALOG[set_name].domains
    needs = [file.format(domain) for domain in domains for file in files.values()]
    places = (images,) if images else tuple(domains)
    return Layout(name, folder, (*needs, *places), "lists", images,
                  options={"parts": files, "first": first})


def _pickles(set_name: str, name: str, folder: str, folders: tuple[str, ...] = ()) -> Layout:
    """Return the layout of FedBN's pickles; ``folders`` are the domains as the files spell them."""
    names = folders or tuple(CATALOG[set_name].domains)
    needs = tuple(f"{domain}_{part}.pkl" for domain in names for part in ("train", "test"))
    return Layout(name, folder, needs, "domain_pickles", options={"folders": names})


def _tree(
    set_name: str, name: str, folder: str, folders: tuple[str, ...] = (),
    classes: tuple[str, ...] = (), absent: str = "",
) -> Layout:
    """Return the layout of an image tree.

    Args:
        folders: the domains as its folders spell them.
        classes: those of the set, where the tree may hold more.
        absent: a file that is there where the tree belongs to another set.
    """
    names = folders or tuple(CATALOG[set_name].domains)
    needs = (*names, *([f"!{absent}"] if absent else []))
    options = {"folders": names, "classes": classes}
    return Layout(name, folder, needs, "domains", options=options, published=False)


_FULL = {"train": "{}_train.txt", "test": "{}_test.txt"}
_SPLITS = {part: f"splits/{file}" for part, file in _FULL.items()}
# PACS's own test folds hold every image of a domain, training images too; crossval does not.
_FOLDS = {"train": "splits/{}_train_kfold.txt", "test": "splits/{}_crossval_kfold.txt"}
_LABELS = {"train": "label/{}_train_kfold.txt", "test": "label/{}_test_kfold.txt"}
# Dassl's layout for domain generalisation calls the held-out part val.
_HELD_OUT = {"train": "{}/train", "test": "{}/val"}

DOMAIN_LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "DomainNet": (
        _pickles("DomainNet", "FedBN pickles", "DomainNet"),
        _tree("DomainNet", "domain tree", "DomainNet", (), _TEN, "clipart_train.txt"),
    ),
    "DomainNetFull": (
        _lists("DomainNetFull", "DomainNet lists", "DomainNet", _FULL),
        _lists("DomainNetFull", "Dassl lists", "domainnet", _SPLITS),
        _tree("DomainNetFull", "domain tree", "domainnet"),
        _tree("DomainNetFull", "DomainBed domain tree", "domain_net"),
    ),
    "OfficeCaltech10": (
        _pickles("OfficeCaltech10", "FedBN pickles", "office_caltech_10"),
        _tree("OfficeCaltech10", "domain tree", "office_caltech_10"),
    ),
    "PACS": (
        _lists("PACS", "Dassl folds (crossval is the test list)", "pacs", _FOLDS, "images", 1),
        _lists("PACS", "FedPHA folds", "PACS", _LABELS, "raw_images", 1),
        _pickles("PACS", "FLORA pickles", "PACS"),
        _tree("PACS", "DomainBed domain tree", "PACS"),
        _tree("PACS", "domain tree", "pacs"),
        _tree("PACS", "domain tree as published", "PACS/kfold"),
    ),
    "OfficeHome": (
        _pickles("OfficeHome", "FedTV pickles", "OfficeHome", _HOME),
        Layout(
            "Dassl train and val trees (val is the test list)", "office_home_dg",
            tuple(folder.format(domain) for domain in CATALOG["OfficeHome"].domains
                  for folder in _HELD_OUT.values()),
            "part_folders", options={"parts": _HELD_OUT},
        ),
        _tree("OfficeHome", "Dassl domain tree", "office_home"),
        _tree("OfficeHome", "FedPHA domain tree", "office_home", _TITLED),
        _tree("OfficeHome", "DomainBed domain tree", "office_home", _HOME),
        _tree("OfficeHome", "domain tree as published", "OfficeHomeDataset_10072016", _HOME),
    ),
    "Office31": (
        _tree("Office31", "FedPHA domain tree", "OFFICE31"),
        _tree("Office31", "Dassl domain tree", "office31"),
    ),
}


LAYOUTS: dict[str, tuple[Layout, ...]] = {
    **{name: _single_domain(info) for name, info in CATALOG.items()},
    **DOMAIN_LAYOUTS,
}
