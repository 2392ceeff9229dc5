"""What the doctor says of a set: its state, its counts, and one sentence per finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fedvlm.data.image_records import Progress

READY, PREPARED, BUILT_IN = "ready", "prepared", "built in"
BROKEN, PARTLY, ABSENT = "broken", "partly", "absent"
_SHOWN = 5


@dataclass(frozen=True)
class Finding:
    """One thing to say of a set.

    Attributes:
        check: a stable key of what was looked for: ``missing_files``, ``leak_paths``, ...
        text: one sentence.
        count: how many images, rows or classes it is about.
        broken: a run would fail or give wrong numbers; False is a remark.
    """

    check: str
    text: str
    count: int = 1
    broken: bool = True


@dataclass(frozen=True)
class Look:
    """How closely to look.

    Attributes:
        sample: images of a set that are decoded and hashed; None for all.
        progress: told (what, done, of) while images are read.
    """

    sample: int | None = 64
    progress: Progress | None = None


@dataclass
class Checkup:
    """What was found of one set.

    Attributes:
        name: of the set.
        state: ``ready``, ``prepared`` (the split is of ``data prepare``), ``built in``, ``broken``,
            ``partly`` (files of the layout are missing) or ``absent``.
        layout: the layout that was read, or the nearest one.
        folder: of the set, below the root.
        classes, sizes: found; ``sizes`` by part. None and empty where nothing was read.
        published_classes, published_sizes: of the facts table; None where not known.
        images: number of distinct images in the lists.
        looked: images that were decoded; ``unreadable`` of them do not decode.
        leaks: images in train and in test or val, by path or by bytes.
        modes: kinds of images that are converted: grey, CMYK, ...; their number among ``looked``.
        findings: problems and remarks.
        get: how to get what is missing; ``page`` is the URL in it, where it is got by hand.
    """

    name: str
    state: str = ABSENT
    layout: str = ""
    folder: str = ""
    classes: int | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    published_classes: int | None = None
    published_sizes: dict[str, int | None] = field(default_factory=dict)
    images: int = 0
    looked: int = 0
    unreadable: int = 0
    leaks: int = 0
    modes: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    get: str = ""
    page: str = ""

    @property
    def problems(self) -> list[Finding]:
        """What must be mended."""
        return [found for found in self.findings if found.broken]

    @property
    def remarks(self) -> list[Finding]:
        """What should be known."""
        return [found for found in self.findings if not found.broken]


def some(names: Iterable[str], shown: int = _SHOWN) -> str:
    """Return the first names, and that there are more: ``a, b, ...``."""
    every = list(names)
    return ", ".join(every[:shown]) + (", ..." if len(every) > shown else "")


def counted(check: str, names: list[str], sentence: Callable[[int], str],
            broken: bool = True) -> list[Finding]:
    """Return a finding that counts ``names`` and shows the first; none where there are none."""
    if not names:
        return []
    text = f"{sentence(len(names))} (first: {names[0]})"
    return [Finding(check, text, len(names), broken)]


def plural(number: int, word: str, many: str = "") -> str:
    """Return ``1 image``, ``2 images``."""
    return f"{number:,} {word if number == 1 else many or word + 's'}"
