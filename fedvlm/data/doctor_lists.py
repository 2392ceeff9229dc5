"""What can be wrong with a set's lists: labels, names, rows that repeat, leaks between the parts.

``DatasetBase`` refuses the first of these when a run begins; here all of them are said.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fedvlm.data.datum import PARTS, Datum
from fedvlm.data.doctor_found import Finding, counted, plural, some
from fedvlm.data.locate import folded_path

Lists = Mapping[str, Sequence[Datum]]
_MAJORITY = 0.9  # share of one label that makes a folder the folder of that class


def check_lists(lists: Lists, test_only: bool = False) -> list[Finding]:
    """Return what is wrong with the lists, problems and remarks; opens no image.

    Args:
        lists: train, val and test.
        test_only: the set is published without training images.
    """
    every = [datum for part in PARTS for datum in lists[part]]
    if not every:
        return [Finding("no_images", "the lists name no image at all")]
    names = _names_by_label(every)
    return [
        *_two_names(names),
        *_two_labels(names),
        *_same_prompt(names),
        *_gaps(names),
        *leaks(lists),
        *_listed_twice(lists),
        *_other_folder(every),
        *_collisions(every),
        *_without(lists, names, test_only),
    ]


def leaks(lists: Lists) -> list[Finding]:
    """Return a finding for each pair of parts that share an image, by its path."""
    keys = {part: {d.key for d in lists[part]} for part in PARTS}
    found = []
    for one, other, broken in (("train", "test", True), ("train", "val", True),
                               ("val", "test", False)):
        both = sorted(keys[one] & keys[other])
        say = partial(_in_both, one=one, other=other)
        found += counted("leak_paths", both, say, broken)
    return found


def _in_both(number: int, one: str, other: str) -> str:
    return f"{plural(number, 'image')} in {one} and in {other}"


def _names_by_label(items: Sequence[Datum]) -> dict[int, Counter[str]]:
    names: dict[int, Counter[str]] = defaultdict(Counter)
    for datum in items:
        names[datum.label][datum.classname] += 1
    return dict(sorted(names.items()))


def _two_names(names: Mapping[int, Counter[str]]) -> list[Finding]:
    many = {label: row for label, row in names.items() if len(row) > 1}
    shown = [
        f"label {label} is " + ", ".join(f"'{n}' {c} times" for n, c in row.most_common(3))
        for label, row in many.items()
    ]
    return counted("label_names", shown, lambda n: f"{plural(n, 'label')} with several names")


def _two_labels(names: Mapping[int, Counter[str]]) -> list[Finding]:
    labels: dict[str, list[int]] = defaultdict(list)
    for label, row in names.items():
        for name in row:
            labels[name].append(label)
    shown = [f"'{name}' has labels {some(map(str, at))}"
             for name, at in labels.items() if len(at) > 1]
    return counted("duplicate_names", shown,
                   lambda n: f"{plural(n, 'class name')} with several labels")


def _same_prompt(names: Mapping[int, Counter[str]]) -> list[Finding]:
    """Find names that prompts cannot tell apart: ``_`` becomes a blank, CLIP folds case."""
    groups: dict[str, set[str]] = defaultdict(set)
    for name in {name for row in names.values() for name in row}:
        groups[" ".join(name.replace("_", " ").casefold().split())].add(name)
    shown = [" and ".join(f"'{n}'" for n in sorted(group))
             for _, group in sorted(groups.items()) if len(group) > 1]
    return counted("same_prompt", shown, lambda n: f"{plural(n, 'group')} of class names give "
                   "the same prompt, since case and underscores do not show in it")


def _gaps(names: Mapping[int, Counter[str]]) -> list[Finding]:
    missing = sorted(set(range(max(names) + 1)) - set(names))
    if not missing:
        return []
    text = (f"labels must be 0, 1, 2, ... without gaps, but they go up to {max(names)} and "
            f"{len(missing)} of them {'is' if len(missing) == 1 else 'are'} not used "
            f"({some(map(str, missing))})")
    return [Finding("label_gaps", text, len(missing))]


def _listed_twice(lists: Lists) -> list[Finding]:
    found = []
    for part in PARTS:
        twice = [key for key, n in Counter(d.key for d in lists[part]).items() if n > 1]
        say: Callable[[int], str] = partial(_repeated, part=part)
        found += counted("listed_twice", twice, say, broken=False)
    return found


def _repeated(number: int, part: str) -> str:
    return f"{plural(number, 'image')} listed more than once in {part}"


def _other_folder(items: Sequence[Datum]) -> list[Finding]:
    """Find images that lie in the folder of another class.

    A folder belongs to a class where nine tenths of its images have that label; in a set whose
    folders are not those of its classes, nothing is looked for.
    """
    folders: dict[str, Counter[int]] = defaultdict(Counter)
    for datum in items:
        folders[datum.key.rpartition("/")[0]][datum.label] += 1
    owner: dict[str, int] = {}
    for folder, labels in folders.items():
        label, most = labels.most_common(1)[0]
        if most >= _MAJORITY * labels.total():
            owner[folder] = label
    names = {datum.label: datum.classname for datum in items}
    if len(owner) < 2 or 2 * len(set(owner.values())) < len(names):
        return []
    shown = [
        f"{d.key} is '{d.classname}', but its folder is that of '{names[own]}'"
        for d in items
        if (own := owner.get(d.key.rpartition("/")[0], d.label)) != d.label
        and names[own] != d.classname  # one class with two labels is told as that
    ]
    return counted("other_folder", shown,
                   lambda n: f"{plural(n, 'image')} in the folder of another class")


def _collisions(items: Sequence[Datum]) -> list[Finding]:
    first: dict[str, str] = {}
    groups: dict[str, set[str]] = defaultdict(set)
    for datum in items:
        folded = folded_path(datum.key)
        if first.setdefault(folded, datum.key) != datum.key:
            groups[folded] |= {first[folded], datum.key}
    shown = [" and ".join(sorted(group)) for _, group in sorted(groups.items())]
    return counted("colliding_paths", shown, lambda n: f"{plural(n, 'group')} of paths differ only "
                   "in case or Unicode form; a file system that folds these keeps one of each",
                   broken=False)


def _without(
    lists: Lists, names: Mapping[int, Counter[str]], test_only: bool
) -> list[Finding]:
    found = []
    for part in ("test",) if test_only else ("train", "test"):
        held = {d.label for d in lists[part]}
        gone = [f"'{row.most_common(1)[0][0]}'" for label, row in names.items()
                if label not in held]
        if gone:
            text = f"{plural(len(gone), 'class', 'classes')} without a {part} image: {some(gone)}"
            found.append(Finding(f"no_{part}_images", text, len(gone), broken=False))
    return found
