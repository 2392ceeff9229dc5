"""Image trees of the published multi-domain sets, whose domains go by several spellings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedvlm.data.domain_rows import Row, tree_of_rows
from fedvlm.data.facts import Facts
from fedvlm.data.readers import Names, Tree, class_folders, image_files, read_domains


def read_spelled(folder: Path, facts: Facts, *, spelled: tuple[str, ...] = ()) -> Tree:
    """Read ``<domain>/<class>/file``, cut 50/20/30 by this project; the facts name the domains.

    Args:
        spelled: the domains' folders in the order of the facts; other folders are left aside.

    Raises:
        DataError: an empty class folder, or a domain without classes.
    """
    tree = read_domains(folder, Names(facts.renames, facts.drop), spelled or tuple(facts.domains))
    return Tree(tree.parts, list(facts.domains), tree.notes)


def read_part_folders(
    folder: Path, facts: Facts, *, parts: Mapping[str, str], spelled: tuple[str, ...] = ()
) -> Tree:
    """Read ``<domain>/<part>/<class>/file``.

    Args:
        parts: part to the folder that holds it.
        spelled: as ``read_spelled``.

    Raises:
        DataError: a part without class folders, or a domain without test images.
    """
    names = Names(facts.renames, facts.drop)
    rows: list[Row] = []
    for number, domain in enumerate(spelled or tuple(facts.domains)):
        for part, inner in parts.items():
            place = folder / domain / inner
            for name in class_folders(place, names):
                base = f"{domain}/{inner}/{name}"
                rows += [
                    Row(f"{base}/{file}", facts.renames.get(name, name), None, number, part, base)
                    for file in image_files(place / name)
                ]
    return tree_of_rows(rows, folder, facts, [])
