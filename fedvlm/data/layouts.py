"""Where a set's files lie under the root: known layouts, tried in order; the first that fits wins.

A layout names what it needs and how it is read. The one that was used is in the set's notes, and
where none fits the error names the nearest one and what it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvlm.data.facts import Facts
from fedvlm.data.locate import check_relative, listing
from fedvlm.data.readers import Tree
from fedvlm.errors import DataError, did_you_mean


@dataclass(frozen=True)
class Layout:
    """One way in which people lay a data set out.

    Attributes:
        name: said in notes and by the doctor: ``CoOp split file``, ``FedBN pickles``.
        folder: below the root; ``DATASET.DIR`` replaces it.
        needs: files and folders that must be there, below ``folder`` or as absolute paths; what
            ends in ``/`` must be a folder.
        read: (folder, facts) -> lists; it opens no image.
        published: False where the split is not the published one; results carry it.
    """

    name: str
    folder: str
    needs: tuple[str, ...]
    read: Callable[[Path, Facts], Tree]
    published: bool = True

    def place(self, root: Path, folder: str = "") -> Path:
        """Return the set's folder under the root."""
        wanted = folder or self.folder
        check_relative(wanted, "DATASET.DIR")
        return root / wanted

    def missing(self, root: Path, folder: str = "") -> list[str]:
        """Return what of ``needs`` is not there, as paths below the root; the folder if that is."""
        place = self.place(root, folder)
        if not place.is_dir():
            return [place.relative_to(root).as_posix()]
        lacks = [place / need for need in self.needs if not _is_there(place, need)]
        inside = [(path, path.is_relative_to(root)) for path in lacks]
        return [(p.relative_to(root) if below else p).as_posix() for p, below in inside]


def _is_there(place: Path, need: str) -> bool:
    return (place / need).is_dir() if need.endswith("/") else (place / need).exists()


def layouts_of(facts: Facts) -> tuple[Layout, ...]:
    """Return the layouts of a set in the order in which they are tried."""
    from fedvlm.data.layout_table import LAYOUTS  # the table imports all readers

    return LAYOUTS[facts.name]


def choose(layouts: Sequence[Layout], root: Path, folder: str = "") -> Layout | None:
    """Return the first layout whose needs are all there; None where none fits."""
    return next((one for one in layouts if not one.missing(root, folder)), None)


def nearest(layouts: Sequence[Layout], root: Path, folder: str = "") -> Layout:
    """Return the layout of which most is there: its folder first, then the fewest needs missing."""
    def lacks(one: Layout) -> tuple[bool, int]:
        place = one.place(root, folder)
        return place == root or not place.is_dir(), len(one.missing(root, folder))

    return min(layouts, key=lacks)


def read_known(
    facts: Facts, root: Path, folder: str, more: Sequence[Layout] = (), hint: str = ""
) -> Tree:
    """Read a known set in the first layout that fits.

    Args:
        root: DATASET.ROOT, an existing folder.
        folder: DATASET.DIR; empty for each layout's own.
        more: layouts that are tried after the set's own.
        hint: what else can be done, said at the end of the error.

    Raises:
        DataError: no layout fits; says what the nearest one lacks, what is there, where to get it.
    """
    layouts = (*layouts_of(facts), *more)
    found = choose(layouts, root, folder)
    if found is None:
        raise DataError(_nothing_fits(facts, layouts, root, folder, hint))
    tree = found.read(found.place(root, folder), facts)
    notes = [*tree.notes]
    if len(layouts) > 1:
        notes.append(f"{facts.name}: layout '{found.name}'")
    if not found.published:
        notes.append(f"{facts.name}: not the published split ({found.name})")
    return Tree(tree.parts, tree.domain_names, notes)


def _nothing_fits(
    facts: Facts, layouts: Sequence[Layout], root: Path, folder: str, hint: str
) -> str:
    best = nearest(layouts, root, folder)
    place, lacks = best.place(root, folder), best.missing(root, folder)
    if not place.is_dir():
        names = listing(root)
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "nothing"
        near = did_you_mean(place.relative_to(root).parts[0], names)
        near = near and f"{near} (DATASET.DIR says where it lies)"
        if root.name == place.name:
            near = f"; that name is {root} itself: give the folder above it as --root"
        what = f"the folder {place} does not exist; found in {root}: {shown}{near}"
    else:
        seen = ", ".join(listing(place)[:8]) or "nothing"
        what = f"{', '.join(lacks)} missing in {root} (layout '{best.name}'); found there: {seen}"
    others = [one.name for one in layouts if one is not best and one.published]
    also = f"; other layouts that are known: {', '.join(others)}" if others else ""
    source = f"; get it from {facts.source}" if facts.source else ""
    return f"{facts.name}: {what}{also}{source}{_prepare(facts, place, root, folder)}{hint}"


def _prepare(facts: Facts, place: Path, root: Path, folder: str) -> str:
    """Return how to make a split where the images are there and only the split file is not."""
    if not facts.split_file or facts.builtin or not (place / facts.image_dir).is_dir():
        return ""
    told = f" --dir {folder}" if folder else ""
    return f"; or make a split: python -m fedvlm data prepare {facts.name} --root {root}{told}"


Table = Mapping[str, tuple[Layout, ...]]
