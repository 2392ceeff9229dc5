"""Layouts of the sets with one domain: CoOp's, CIFAR's, ImageNet's and those rendered here.

Splits made by ``data prepare`` are found by ``prepared``, after the layouts named here.
"""

from __future__ import annotations

from pathlib import Path

from fedvlm.data.aircraft import LISTS, VARIANTS, read_aircraft
from fedvlm.data.cifar import read_cifar
from fedvlm.data.facts import Facts
from fedvlm.data.imagenet import read_imagenet
from fedvlm.data.layouts import Layout
from fedvlm.data.readers import Names, Tree, read_domains, read_folders
from fedvlm.data.split_file import read_split

_CIFAR_FOLDERS = {
    "Cifar10": ("cifar-10-batches-py", "batches.meta"),
    "Cifar100": ("cifar-100-python", "meta"),
}


def coop_layouts(facts: Facts) -> tuple[Layout, ...]:
    """Return the layouts of a set with one domain, in the order in which they are tried."""
    if facts.form == "cifar":
        return _cifar_layouts(facts)
    if facts.form == "aircraft":
        return _aircraft_layouts(facts)
    if facts.form == "imagenet":
        return _imagenet_layouts(facts)
    if facts.form == "domains":
        return (Layout("domain tree", facts.folder, (), _domains),)
    if facts.form == "folders":
        return (Layout("class folders", facts.folder, (facts.image_dir,), _folders),)
    needs = tuple(n for n in (facts.image_dir, facts.split_file) if n)
    return (Layout("CoOp split file", facts.folder, needs, _split),)


def _cifar_layouts(facts: Facts) -> tuple[Layout, ...]:
    """Class folders, or torchvision's pickles: below the folder, in it, or below the root."""
    below, meta = _CIFAR_FOLDERS[facts.name]
    return (
        Layout("class folders", facts.folder, ("train/", "test/"), _folders),
        Layout("torchvision pickles", facts.folder, (f"{below}/{meta}",), _pickles),
        Layout("torchvision pickles in the folder itself", facts.folder, (meta,), _pickles),
        Layout("torchvision pickles below the root", "", (f"{below}/{meta}",), _pickles),
    )


def _aircraft_layouts(facts: Facts) -> tuple[Layout, ...]:
    """CoOp's folder, or the archive as it is unpacked."""
    needs = (facts.image_dir, VARIANTS, *LISTS.values())
    return (
        Layout("CoOp folders", facts.folder, needs, _aircraft),
        Layout("archive as unpacked", "fgvc-aircraft-2013b/data", needs, _aircraft),
    )


def _imagenet_layouts(facts: Facts) -> tuple[Layout, ...]:
    """CoOp's folders; for ImageNet itself also those that torchvision's ``ImageNet`` makes."""
    needs = tuple(f"{facts.image_dir}/{below}".rstrip("/") for below in facts.parts.values())
    coop = Layout("CoOp folders", facts.folder, needs, _imagenet)
    if not facts.parts.get("train"):
        return (coop,)
    bare = tuple(facts.parts.values())
    return coop, Layout("torchvision's train and val", facts.folder, bare, _imagenet_bare)


def _split(folder: Path, facts: Facts) -> Tree:
    return read_split(folder / facts.split_file, folder / facts.image_dir).tree()


def _pickles(folder: Path, _facts: Facts) -> Tree:
    return Tree(read_cifar(folder).parts, [], [])  # its note would say the layout twice


def _aircraft(folder: Path, facts: Facts) -> Tree:
    return read_aircraft(folder, facts.image_dir)


def _imagenet(folder: Path, facts: Facts) -> Tree:
    return read_imagenet(folder, folder / facts.image_dir, facts)


def _imagenet_bare(folder: Path, facts: Facts) -> Tree:
    return read_imagenet(folder, folder, facts)


def _domains(folder: Path, facts: Facts) -> Tree:
    return read_domains(folder / facts.image_dir, Names(facts.renames, facts.drop))


def _folders(folder: Path, facts: Facts) -> Tree:
    return read_folders(folder / facts.image_dir, Names(facts.renames, facts.drop))
