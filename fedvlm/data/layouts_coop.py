"""Layouts of the sets with one domain: CoOp's, CIFAR's, and those this project renders."""

from __future__ import annotations

from pathlib import Path

from fedvlm.data.cifar import read_cifar
from fedvlm.data.facts import Facts
from fedvlm.data.layouts import Layout
from fedvlm.data.readers import Names, Tree, read_domains, read_folders
from fedvlm.data.split_file import read_split


def coop_layouts(facts: Facts) -> tuple[Layout, ...]:
    """Return the layouts of a set whose row of facts says all there is to say."""
    if facts.form == "cifar":
        return (Layout("CIFAR", facts.folder, (), _cifar),)
    if facts.form == "domains":
        return (Layout("domain tree", facts.folder, (), _domains),)
    if facts.form == "folders":
        return (Layout("class folders", facts.folder, (facts.image_dir,), _folders),)
    needs = tuple(n for n in (facts.image_dir, facts.split_file) if n)
    return (Layout("CoOp split file", facts.folder, needs, _split),)


def _split(folder: Path, facts: Facts) -> Tree:
    split = read_split(folder / facts.split_file, folder / facts.image_dir)
    parts = {"train": split.train, "val": split.val, "test": split.test}
    return Tree(parts, split.domain_names, [])


def _cifar(folder: Path, _facts: Facts) -> Tree:
    return read_cifar(folder)


def _domains(folder: Path, facts: Facts) -> Tree:
    return read_domains(folder / facts.image_dir, Names(facts.renames, facts.drop))


def _folders(folder: Path, facts: Facts) -> Tree:
    return read_folders(folder / facts.image_dir, Names(facts.renames, facts.drop))
