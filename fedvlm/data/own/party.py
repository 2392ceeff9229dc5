"""One party's site file: from its folders of images and the federation's list of classes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedvlm.config.option import Value
from fedvlm.core.errors import DataError, did_you_mean, fold
from fedvlm.data.datasets import DEFAULT_TEMPLATE
from fedvlm.data.datum import PARTS, Datum, refuse_targets
from fedvlm.data.formats.class_names import folder_words, runs_together
from fedvlm.data.locate import read_lines
from fedvlm.data.own.add import OwnSet, understand, without_flags
from fedvlm.data.own.site import ImageList, SiteFile


def read_classes(path: Path) -> list[str]:
    """Return the federation's class names: a line each, the label is the line's place.

    Raises:
        DataError: unreadable, fewer than two, or a name twice.
    """
    names = [text for _, text in read_lines(path)]
    if len(names) < 2:
        raise DataError(f"'{path}' names {len(names)} class(es), one per line; give at "
                        "least two")
    seen: dict[str, str] = {}
    for name in names:
        if fold(name) in seen:
            raise DataError(f"'{path}': '{seen[fold(name)]}' and '{name}' are one class; name it "
                            "once")
        seen[fold(name)] = name
    return names


def site_of(
    folders: Mapping[int, Path], classnames: Sequence[str], *, name: str = "",
    templates: Sequence[str] = (), public: Path | None = None,
    given: Mapping[str, Value] | None = None,
) -> tuple[SiteFile, Path, list[str]]:
    """Return a party's site file, the folder above its paths, and how the folders were read.

    Args:
        folders: the images of each client: any shape that ``fedvlm data add`` understands.
        classnames: of the whole federation, by label.
        templates: prompts with ``{}``, the same at all parties.
        public: a folder of the same kinds; all images in it are test images.
        given: config keys that say how tables are read (columns, groups).

    Raises:
        ConfigError: images without a label, or with other targets than one class.
        DataError: a folder that is no data set, a class that the federation does not have, or
            images inside a file.
    """
    given = {"DATASET.CLASSNAMES": "", **(given or {})}  # the names are those of the list
    with without_flags("a site file", "labels", "captions"):
        sets = {c: understand(path, given) for c, path in folders.items()}
        open_set = understand(public, given) if public else None
    every = [*sets.values(), *([open_set] if open_set else [])]
    for own in every:
        refuse_targets("a site file", sets=own.data.label_names, captions=own.data.captioned,
                       unlabelled=own.data.unlabelled)
    places = [*folders.values(), *([public] if public else [])]
    top = _top([d for own in every for d in own.data.all()], places)
    labels = {fold(n): label for label, n in enumerate(classnames)}
    clients = {
        c: {part: _images(own, own.data.parts[part], labels, classnames, top) for part in PARTS}
        for c, own in sorted(sets.items())
    }
    tests = _images(open_set, open_set.data.all(), labels, classnames, top) if open_set else []
    title = name or (every[0].data.name if every else "federation")
    file = SiteFile(
        title, list(classnames), list(templates) or [DEFAULT_TEMPLATE], clients, tests,
        groups={_below(top, d): d.group for own in (every if sets else ()) for d in own.data.all()
                if d.group is not None},
    )
    said = [line for c, own in sorted(sets.items()) for line in
            (f"client {c}: {own.sentence}", *(f"note: {_one(note, c)}" for note in own.reading))]
    if odd := runs_together(classnames):
        said.append(f"note: prompts use the names of the list as they are: {odd[0]}; to have words "
                    f"in them, write '{folder_words(odd[0])}' there, at all parties alike "
                    f"({len(odd)} of {len(classnames)} names)")
    said += [f"public: {len(tests):,} test images of {public}"] if public else []
    return file, top, said


def _one(note: str, client: int) -> str:
    """Return a note of a table that seems to say whose images they are, for one client's."""
    what, found, _ = note.partition(": --clients-by ")
    return note if not found else (
        f"{what}; here all are client {client}: cut the table by that column and give each part "
        "with a --client of its own")


def _top(images: Sequence[Datum], given: Sequence[Path]) -> Path:
    """Return the folder above all images: the one that was given, if it is."""
    inside = next((d for d in images if d.array is not None or d.packed is not None), None)
    if inside is not None:
        raise DataError(
            f"the images of '{inside.impath}' are inside a file: a site wants a file for each; "
            "unpack them into a folder"
        )
    homes = {Path(d.impath).resolve().parent for d in images}
    tops = [path.resolve() if path.is_dir() else path.resolve().parent for path in given]
    if not tops:
        return Path()
    top = Path(os.path.commonpath(tops))
    fine = all(home.is_relative_to(top) for home in homes)
    return top if fine else Path(os.path.commonpath([top, *homes]))


def _images(
    own: OwnSet, images: Sequence[Datum], labels: Mapping[str, int], classnames: Sequence[str],
    top: Path,
) -> ImageList:
    out = []
    for datum in images:
        label = labels.get(fold(datum.classname))
        if label is None:
            raise DataError(
                f"{own.data.name}: the federation has no class '{datum.classname}'"
                f"{did_you_mean(datum.classname, classnames)} (--classes names them all; rename "
                "its class here, or leave its images out)"
            )
        out.append((_below(top, datum), label))
    return out


def _below(top: Path, datum: Datum) -> str:
    return Path(datum.impath).resolve().relative_to(top).as_posix()
