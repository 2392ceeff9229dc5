"""Where a set's files lie under the root: layouts by set, tried in order; the first that fits wins.

A layout names what it needs and how it is read. The one that was used is in the set's notes, and
where none fits the error names the nearest one and what it lacks. Lists that others publish go
before trees, since a tree is cut by this project.

Splits that ``fedvlm data prepare`` made are tried after a set's published layouts. Their name is
never CoOp's, so that no later run takes such a split for the published one. Of their two places the
one beside the images goes first; the one in the cache is bound to the folder it was made of, so two
roots never share a split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core.cache import cache_dir
from fedvlm.core.errors import DataError, did_you_mean
from fedvlm.data.catalog import CATALOG, DatasetInfo
from fedvlm.data.datum import DatasetBase
from fedvlm.data.formats.aircraft import LISTS, VARIANTS, read_aircraft
from fedvlm.data.formats.cifar import read_cifar
from fedvlm.data.formats.coop_split import read_split
from fedvlm.data.formats.domains import (
    read_domain_tree,
    read_lists,
    read_part_folders,
    read_pickles,
)
from fedvlm.data.formats.folders import Names, read_domains, read_folders
from fedvlm.data.formats.imagenet import read_imagenet
from fedvlm.data.locate import check_relative, listing


@dataclass(frozen=True)
class Layout:
    """One way in which people lay a data set out.

    Attributes:
        name: said in notes and by the doctor: ``CoOp split file``, ``FedBN pickles``.
        folder: below the root; ``DATASET.DIR`` replaces it.
        needs: files and folders that must be there, below ``folder`` or as absolute paths; what
            ends in ``/`` must be a folder, what begins with ``!`` must not be there.
        read: (folder, info) -> lists; it opens no image.
        published: False where the split is not the published one; results carry it.
    """

    name: str
    folder: str
    needs: tuple[str, ...]
    read: Callable[[Path, DatasetInfo], DatasetBase]
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


def nearest(layouts: Sequence[Layout], root: Path, folder: str = "") -> Layout:
    """Return the layout of which most is there: its folder first, then the fewest needs missing."""

    def distance(layout: Layout) -> tuple[bool, int]:
        place = layout.place(root, folder)
        return place == root or not place.is_dir(), len(layout.missing(root, folder))

    return min(layouts, key=distance)


def read_layouts(
    info: DatasetInfo, root: Path, folder: str, more: Sequence[Layout] = (), hint: str = ""
) -> DatasetBase:
    """Read a known set in the first layout that fits.

    Args:
        root: DATASET.ROOT, an existing folder.
        folder: DATASET.DIR; empty for each layout's own.
        more: layouts that are tried after the set's own.
        hint: what else can be done, said at the end of the error.

    Raises:
        DataError: no layout fits; says what the nearest one lacks, what is there, where to get it.
    """
    layouts = (*layouts_of(info), *more)
    layout = choose(layouts, root, folder)
    if layout is None:
        raise DataError(_nothing_fits(info, layouts, root, folder, hint))
    data = layout.read(layout.place(root, folder), info)
    if len(layouts) > 1:
        data.notes.append(f"{info.name}: layout '{layout.name}'")
    if not layout.published:
        data.notes.append(f"{info.name}: not the published split ({layout.name})")
    return data


def _nothing_fits(
    info: DatasetInfo, layouts: Sequence[Layout], root: Path, folder: str, hint: str
) -> str:
    best = nearest(layouts, root, folder)
    place = best.place(root, folder)
    if not place.is_dir():
        names = listing(root)
        content = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "nothing"
        near = did_you_mean(place.relative_to(root).parts[0], names)
        near = near and f"{near} (DATASET.DIR says where it lies)"
        if root.name == place.name:
            near = f"; that name is {root} itself: give the folder above it as --root"
        what = f"the folder {place} does not exist; found in {root}: {content}{near}"
    else:
        lacks = ", ".join(best.missing(root, folder))
        content = ", ".join(listing(place)[:8]) or "nothing"
        what = f"{lacks} missing in {root} (layout '{best.name}'); found there: {content}"
    others = [layout.name for layout in layouts if layout is not best and layout.published]
    also = f"; other layouts that are known: {', '.join(others)}" if others else ""
    source = f"; get it from {info.source}" if info.source else ""
    return f"{info.name}: {what}{also}{source}{_prepare_hint(info, place, root, folder)}{hint}"


def _prepare_hint(info: DatasetInfo, place: Path, root: Path, folder: str) -> str:
    """Return how to make a split where the images are there and only the split file is not."""
    if not info.split_file or info.builtin or not (place / info.image_dir).is_dir():
        return ""
    option = f" --dir {folder}" if folder else ""
    return f"; or make a split: python -m fedvlm data prepare {info.name} --root {root}{option}"


_CIFAR_FOLDERS = {
    "Cifar10": ("cifar-10-batches-py", "batches.meta"),
    "Cifar100": ("cifar-100-python", "meta"),
}


def _single_domain(info: DatasetInfo) -> tuple[Layout, ...]:
    """Return the layouts of a set with one domain, in the order in which they are tried."""
    if info.form == "cifar":
        return _cifar_layouts(info)
    if info.form == "aircraft":
        return _aircraft_layouts(info)
    if info.form == "imagenet":
        return _imagenet_layouts(info)
    if info.form == "domains":
        return (Layout("domain tree", info.folder, (), _domains),)
    if info.form == "folders":
        return (Layout("class folders", info.folder, (info.image_dir,), _folders),)
    needs = tuple(n for n in (info.image_dir, info.split_file) if n)
    return (Layout("CoOp split file", info.folder, needs, _split),)


def _cifar_layouts(info: DatasetInfo) -> tuple[Layout, ...]:
    """Class folders, or torchvision's pickles: below the folder, in it, or below the root."""
    below, meta = _CIFAR_FOLDERS[info.name]
    return (
        Layout("class folders", info.folder, ("train/", "test/"), _folders),
        Layout("torchvision pickles", info.folder, (f"{below}/{meta}",), _pickles),
        Layout("torchvision pickles in the folder itself", info.folder, (meta,), _pickles),
        Layout("torchvision pickles below the root", "", (f"{below}/{meta}",), _pickles),
    )


def _aircraft_layouts(info: DatasetInfo) -> tuple[Layout, ...]:
    """CoOp's folder, or the archive as it is unpacked."""
    needs = (info.image_dir, VARIANTS, *LISTS.values())
    return (
        Layout("CoOp folders", info.folder, needs, _aircraft),
        Layout("archive as unpacked", "fgvc-aircraft-2013b/data", needs, _aircraft),
    )


def _imagenet_layouts(info: DatasetInfo) -> tuple[Layout, ...]:
    """CoOp's folders; for ImageNet itself also those that torchvision's ``ImageNet`` makes."""
    needs = tuple(f"{info.image_dir}/{below}".rstrip("/") for below in info.parts.values())
    coop = Layout("CoOp folders", info.folder, needs, _imagenet)
    if not info.parts.get("train"):
        return (coop,)
    bare = tuple(info.parts.values())
    return coop, Layout("torchvision's train and val", info.folder, bare, _imagenet_bare)


def _split(folder: Path, info: DatasetInfo) -> DatasetBase:
    return read_split(folder / info.split_file, folder / info.image_dir)


def _pickles(folder: Path, _info: DatasetInfo) -> DatasetBase:
    data = read_cifar(folder)
    data.notes.clear()  # they would say the layout twice
    return data


def _aircraft(folder: Path, info: DatasetInfo) -> DatasetBase:
    return read_aircraft(folder, info.image_dir)


def _imagenet(folder: Path, info: DatasetInfo) -> DatasetBase:
    return read_imagenet(folder, folder / info.image_dir, info)


def _imagenet_bare(folder: Path, info: DatasetInfo) -> DatasetBase:
    return read_imagenet(folder, folder, info)


def _domains(folder: Path, info: DatasetInfo) -> DatasetBase:
    return read_domains(folder / info.image_dir, Names(info.renames, info.drop))


def _folders(folder: Path, info: DatasetInfo) -> DatasetBase:
    return read_folders(folder / info.image_dir, Names(info.renames, info.drop))


_HOME = ("Art", "Clipart", "Product", "Real World")
# FedBN's ten of DomainNet's 345 classes.
_TEN = ("bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill",
        "wine_glass", "zebra")  # fmt: skip
_TITLED = ("Art", "Clipart", "Product", "Real_World")


def _lists(
    set_name: str, name: str, folder: str, files: dict[str, str], images: str = "", first: int = 0
) -> Layout:
    """Return the layout of lists in text; ``files`` gives each part's, ``{}`` is the domain."""
    domains = CATALOG[set_name].domains
    needs = [file.format(domain) for domain in domains for file in files.values()]
    places = (images,) if images else tuple(domains)
    read = partial(read_lists, files=files, images=images, first=first)
    return Layout(name, folder, (*needs, *places), read)


def _domain_pickles(
    set_name: str, name: str, folder: str, folders: tuple[str, ...] = ()
) -> Layout:
    """Return the layout of FedBN's pickles; ``folders`` are the domains as the files spell them."""
    names = folders or tuple(CATALOG[set_name].domains)
    needs = tuple(f"{domain}_{part}.pkl" for domain in names for part in ("train", "test"))
    return Layout(name, folder, needs, partial(read_pickles, folders=folders))


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
    needs = (*(folders or tuple(CATALOG[set_name].domains)), *([f"!{absent}"] if absent else []))
    read = partial(read_domain_tree, folders=folders, classes=classes)
    return Layout(name, folder, needs, read, published=False)


def _home_generalisation() -> Layout:
    """Return Dassl's layout for domain generalisation, whose held-out part is called val."""
    parts = {"train": "train", "test": "val"}
    needs = tuple(f"{d}/{p}" for d in CATALOG["OfficeHome"].domains for p in parts.values())
    read = partial(read_part_folders, parts=parts)
    return Layout("Dassl train and val trees (val is the test list)", "office_home_dg", needs, read)


_FULL = {"train": "{}_train.txt", "test": "{}_test.txt"}
_SPLITS = {part: f"splits/{file}" for part, file in _FULL.items()}
# PACS's own test folds hold every image of a domain, training images too; crossval does not.
_FOLDS = {"train": "splits/{}_train_kfold.txt", "test": "splits/{}_crossval_kfold.txt"}
_LABELS = {"train": "label/{}_train_kfold.txt", "test": "label/{}_test_kfold.txt"}

DOMAIN_LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "DomainNet": (
        _domain_pickles("DomainNet", "FedBN pickles", "DomainNet"),
        _tree("DomainNet", "domain tree", "DomainNet", (), _TEN, "clipart_train.txt"),
    ),
    "DomainNetFull": (
        _lists("DomainNetFull", "DomainNet lists", "DomainNet", _FULL),
        _lists("DomainNetFull", "Dassl lists", "domainnet", _SPLITS),
        _tree("DomainNetFull", "domain tree", "domainnet"),
        _tree("DomainNetFull", "DomainBed domain tree", "domain_net"),
    ),
    "OfficeCaltech10": (
        _domain_pickles("OfficeCaltech10", "FedBN pickles", "office_caltech_10"),
        _tree("OfficeCaltech10", "domain tree", "office_caltech_10"),
    ),
    "PACS": (
        _lists("PACS", "Dassl folds (crossval is the test list)", "pacs", _FOLDS, "images", 1),
        _lists("PACS", "FedPHA folds", "PACS", _LABELS, "raw_images", 1),
        _domain_pickles("PACS", "FLORA pickles", "PACS"),
        _tree("PACS", "DomainBed domain tree", "PACS"),
        _tree("PACS", "domain tree", "pacs"),
        _tree("PACS", "domain tree as published", "PACS/kfold"),
    ),
    "OfficeHome": (
        _domain_pickles("OfficeHome", "FedTV pickles", "OfficeHome", _HOME),
        _home_generalisation(),
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


def prepared_name(name: str) -> str:
    """Return the file name of a prepared split: ``split_fedvlm_<Name>.json``."""
    return f"split_fedvlm_{name}.json"


def prepared_in_cache(name: str, folder: Path, cfg: CfgNode | None = None) -> Path:
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
    files = {
        "prepared split beside the images": prepared_name(info.name),
        "prepared split in the cache": str(
            prepared_in_cache(info.name, root / (folder or info.folder), cfg)
        ),
    }
    return tuple(
        Layout(
            name, info.folder, tuple(need for need in (info.image_dir, file) if need),
            partial(_read_prepared, file=file), published=False,
        )
        for name, file in files.items()
    )  # fmt: skip


def _read_prepared(folder: Path, info: DatasetInfo, *, file: str) -> DatasetBase:
    return read_split(folder / file, folder / info.image_dir)
