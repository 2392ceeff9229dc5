"""Layouts of the multi-domain sets, in the order in which they are tried.

Lists that others published go before trees, since a tree is cut by this project.
"""

from __future__ import annotations

from functools import partial

from fedvlm.data.domain_lists import read_lists
from fedvlm.data.domain_pickles import read_pickles
from fedvlm.data.domain_trees import read_part_folders, read_spelled
from fedvlm.data.facts import FACTS
from fedvlm.data.layouts import Layout, Table

_HOME = ("Art", "Clipart", "Product", "Real World")
_TITLED = ("Art", "Clipart", "Product", "Real_World")


def _lists(
    set_name: str, name: str, folder: str, files: dict[str, str], images: str = "", first: int = 0
) -> Layout:
    """Return the layout of lists in text; ``files`` gives each part's, ``{}`` is the domain."""
    domains = FACTS[set_name].domains
    needs = [file.format(domain) for domain in domains for file in files.values()]
    places = (images,) if images else tuple(domains)
    read = partial(read_lists, files=files, images=images, first=first)
    return Layout(name, folder, (*needs, *places), read)


def _pickles(set_name: str, name: str, folder: str, spelled: tuple[str, ...] = ()) -> Layout:
    names = spelled or tuple(FACTS[set_name].domains)
    needs = tuple(f"{domain}_{part}.pkl" for domain in names for part in ("train", "test"))
    return Layout(name, folder, needs, partial(read_pickles, spelled=spelled))


def _tree(set_name: str, name: str, folder: str, spelled: tuple[str, ...] = ()) -> Layout:
    needs = spelled or tuple(FACTS[set_name].domains)
    return Layout(name, folder, needs, partial(read_spelled, spelled=spelled), published=False)


def _home_generalisation() -> Layout:
    """Return Dassl's layout for domain generalisation, whose held-out part is called val."""
    parts = {"train": "train", "test": "val"}
    needs = tuple(f"{d}/{p}" for d in FACTS["OfficeHome"].domains for p in parts.values())
    read = partial(read_part_folders, parts=parts)
    return Layout("Dassl train and val trees (val is the test list)", "office_home_dg", needs, read)


_FULL = {"train": "{}_train.txt", "test": "{}_test.txt"}
_SPLITS = {part: f"splits/{file}" for part, file in _FULL.items()}
# PACS's own test folds hold every image of a domain, training images too; crossval does not.
_FOLDS = {"train": "splits/{}_train_kfold.txt", "test": "splits/{}_crossval_kfold.txt"}
_LABELS = {"train": "label/{}_train_kfold.txt", "test": "label/{}_test_kfold.txt"}

DOMAIN_LAYOUTS: Table = {
    "DomainNet": (_pickles("DomainNet", "FedBN pickles", "DomainNet"),),
    "DomainNetFull": (
        _lists("DomainNetFull", "DomainNet lists", "DomainNet", _FULL),
        _lists("DomainNetFull", "Dassl lists", "domainnet", _SPLITS),
    ),
    "OfficeCaltech10": (
        _pickles("OfficeCaltech10", "FedBN pickles", "office_caltech_10"),
        _tree("OfficeCaltech10", "domain tree", "office_caltech_10"),
    ),
    "PACS": (
        _lists("PACS", "Dassl folds (crossval is the test list)", "pacs", _FOLDS, "images", 1),
        _lists("PACS", "FedPHA folds", "PACS", _LABELS, "raw_images", 1),
        _pickles("PACS", "FLORA pickles", "PACS"),
    ),
    "OfficeHome": (
        _pickles("OfficeHome", "FedTV pickles", "OfficeHome", _HOME),
        _home_generalisation(),
        _tree("OfficeHome", "Dassl domain tree", "office_home"),
        _tree("OfficeHome", "FedPHA domain tree", "office_home", _TITLED),
    ),
    "Office31": (
        _tree("Office31", "FedPHA domain tree", "OFFICE31"),
        _tree("Office31", "Dassl domain tree", "office31"),
    ),
}
