"""The map of earlier trials, read for a case in words: ``--like "10 clients, 4 images, skew 0.3"``.

The map is a table, ``map.csv``: a row for each cell and method, columns at least ``set``,
``clients``, ``images`` (of each client, on average), ``skew`` (``even``, ``two classes``, or the
concentration of a Dirichlet distribution: the smaller, the more unlike the clients), ``shift``
(``yes`` where each client has another scanner), ``method`` (``alone``, ``together``, ...),
``seeds`` (draws of clients and images) and, over them, the means ``personal``, ``balanced``,
``hurt`` (percentage of clients that do better alone) and ``gain`` (points of ``personal`` above
alone) with ``gain_se``, its standard error (nan of one draw).
``python scripts/evidence map docs/results/map`` writes it.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.core.stats import cell_interval

PLACE = Path("docs/results/map/map.csv")  # in the checkout
TWO, EVEN = "two classes", "even"
SKEWS = {TWO: 0.05, "0.1": 0.1, "0.3": 0.3, "1": 1.0, EVEN: 100.0}
WORDS = {
    "even": EVEN, "evenly": EVEN, "iid": EVEN, "same classes": EVEN, "all classes": EVEN,
    "all classes evenly": EVEN, "two": TWO, "two classes": TWO, "two classes each": TWO,
    "disjoint": TWO, "own classes": TWO, "classes of their own": TWO,
}
DISJOINT = ("disjoint", "own classes", "classes of their own")
RUNS = "docs/results/should_we_federate.md"
CLASSES = 10  # of the sets of the map
MORE_CLASSES = {"Caltech101": 101}
ALONE, TOGETHER = "alone", "together"
NEEDED = {"set", "clients", "images", "skew", "shift", "method", "seeds", "personal", "balanced",
          "hurt", "gain", "gain_se"}
FAR = math.log(2.5)  # a cell whose clients or images differ by more is another case
Row = Mapping[str, str]
_COUNTS = {word: n for n, word in enumerate((
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    "twenty"), 1)}
_NUMBER = re.compile(
    rf"(?P<n>\d+|{'|'.join(_COUNTS)})\s*(?P<what>clients?|users?|sites?|hospitals?|clinics?|"
    r"cent(er|re)s?|images?|samples?|shots?)(\s+(each|(a|per) (client|user|site|hospital|clinic)))?"
    r"(?P<classes>\s+(a|per|of each) class)?(\s+each)?")
_SHIFT = re.compile(r"((an)?other |differ(ing|ent) |feature |a |domain )*"
                    r"(shift|scanners?|domains?|devices?|cameras?)( each| differ)?")
_EXAMPLE = '"10 clients, 4 images, skew 0.3"'
_PHRASES = ("10 clients", "12 hospitals", "30 images each", "1 image a class", "skew 0.3", "iid",
            "disjoint", "two classes", "classes of their own", "differing scanners", "shift")


@dataclass(frozen=True)
class Case:
    """What is asked: clients, images of each, skew as the map has it, feature shift.

    Attributes:
        word: the user's for the skew.
        classed: images were told by class.
    """

    clients: int
    images: int
    skew: str
    shift: bool = False
    word: str = field(default="", compare=False)
    classed: int = field(default=0, compare=False)

    @property
    def disjoint(self) -> bool:
        """Whether no two clients share a class."""
        return self.word in DISJOINT

    def on(self, name: str) -> Case:
        """Return the case on a set: images told by class are of its own number of classes."""
        classes = MORE_CLASSES.get(name, CLASSES)
        if not self.classed or self.skew == TWO or classes == CLASSES:
            return self
        return replace(self, images=self.classed * classes)

    def told(self) -> str:
        """Return the case in a line, in the user's words, and how the map reads them."""
        named = {TWO: "two classes each", EVEN: "all classes evenly"}.get(
            self.skew, f"Dirichlet {self.skew}")
        word = self.word or self.skew
        skew = f"skew {word}" if word[0] in ".0123456789" else word
        read = "" if word == self.skew or self.disjoint else f" ({named})"
        where = ", simulated scanners in turn" if self.shift else ""
        return f"{self.clients} clients, {self.images} images each, {skew}{read}{where}"


def read_case(text: str) -> Case:
    """Return the case that words describe.

    Raises:
        ConfigError: clients, images or skew are missing, or a word is not understood.
    """
    found: dict[str, str] = {}
    shift, classed = False, 0
    text = re.sub(r"(?<![.\d])(\d{1,3}),(?=\d{3}\b)", r"\1", text)  # 1,000
    text = re.sub(r"(?<![.\d])0,(?=\d+\b(?! *(?!and\b|with\b)[A-Za-z]))", "0.", text)  # 0,3
    parts = (p.strip().lower() for p in re.split(r"[,;]|\band\b|\bwith\b", text))
    for part in filter(None, parts):
        number = _NUMBER.fullmatch(part)
        skew = re.fullmatch(r"(?:skew|beta|dirichlet)?\s*=?\s*(?P<v>[a-z ]+|\d*\.?\d+)", part)
        if number:
            count = str(_COUNTS.get(number["n"], number["n"]))
            images = number["what"].startswith(("image", "sample", "shot"))
            found["images" if images else "clients"] = count
            each = number["classes"] or number["what"].startswith("shot")  # shots are of a class
            classed = int(count) if each else classed
        elif _SHIFT.fullmatch(part):
            shift = True
        elif skew and (skew["v"].strip() in WORDS or skew["v"][0].isdigit() or skew["v"][0] == "."):
            found["word"] = skew["v"].strip()
        else:
            raise ConfigError(f"--like does not understand '{part}'{_nearest_phrase(part)}; write "
                              f"it like {_EXAMPLE} (skew: a number, iid or disjoint; add shift "
                              "where clients differ by scanner)")
    lacking = [name for name, key in (("clients", "clients"), ("images", "images"),
                                      ("skew", "word")) if key not in found]
    if lacking:
        raise ConfigError(f"--like lacks {' and '.join(lacking)}; write it like {_EXAMPLE}")
    skew_of = _nearest_skew(found["word"])
    images_of = classed * (2 if skew_of == TWO else CLASSES) or int(found["images"])
    case = Case(int(found["clients"]), images_of, skew_of, shift, found["word"], classed)
    if case.clients < 2 or case.images < 1:
        raise ConfigError("--like needs at least 2 clients and 1 image")
    return case


def _nearest_phrase(part: str) -> str:
    near = difflib.get_close_matches(part, _PHRASES, 1, 0.5)
    return f" (nearest phrase: '{near[0]}')" if near else ""


def _nearest_skew(word: str) -> str:
    if word in WORDS:
        return WORDS[word]
    value = max(float(word), 1e-3)
    return min(SKEWS, key=lambda name: abs(math.log(SKEWS[name] / value)))


def find_map(word: str = "") -> Path:
    """Return the map's file: the given one, or the checkout's.

    Raises:
        ConfigError: there is none.
    """
    here = Path(__file__).resolve().parents[2] / PLACE
    places = [user_path(word)] if word else [Path.cwd() / PLACE, here]
    for place in places:
        file = place / PLACE.name if place.is_dir() else place
        if file.is_file():
            return file
    if word:
        raise ConfigError(f"--map {word}: there is no such file")
    raise ConfigError(
        f"the map is not part of an installed package; it is {PLACE} in the project's repository: "
        "download it and give it with --map FILE, or advise on your own images with --images FOLDER"
    )


def read_map(file: Path) -> list[Row]:
    """Return the rows of a map.

    Raises:
        DataError: it cannot be read, or lacks a column.
    """
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            table = csv.DictReader(stream)
            lacking = sorted(NEEDED - set(table.fieldnames or ()))
            rows: list[Row] = [] if lacking else list(table)
        if lacking:
            raise DataError(f"{file} is no map: it lacks the column(s) {', '.join(lacking)}")
        for row in rows:
            for name in ("clients", "images", "personal", "balanced", "hurt", "gain", "gain_se"):
                float(row[name])
    except (OSError, UnicodeDecodeError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as a map: {error}") from error
    return rows


@dataclass(frozen=True)
class MapAdvice:
    """What the map says of a case.

    Attributes:
        cells: the nearest of each set, as plain JSON.
        verdict: over these, a sentence.
    """

    lines: list[str]
    cells: list[dict[str, Any]]
    verdict: str


def read_like(text: str, file: Path) -> MapAdvice:
    """Return what the map says of a case.

    Raises:
        ConfigError: the case is not understood.
        DataError: the map is damaged.
    """
    case, every = read_case(text), read_map(file)
    names = list(dict.fromkeys(r["set"] for r in every))
    every = [r for r in every if (r["shift"] == "yes") is case.shift]
    rows = [r for r in every if r["skew"] == case.skew
            and (not case.disjoint
                 or 2 * int(r["clients"]) <= MORE_CLASSES.get(r["set"], CLASSES))]
    every = [r for r in every if r["method"] == TOGETHER]
    cells = {name: _nearest(case.on(name), [r for r in rows if r["set"] == name])
             for name in names}
    gains, found = [], []
    wide = max(map(len, ["set", *names]))
    lines = [f"The map's cells nearest to {case.told()}: linear heads at the end of training"]
    if case.classed:
        more = "".join(f"; {name}: {case.on(name).images} of {count}" for name, count in
                       MORE_CLASSES.items() if name in names and case.on(name) != case)
        lines.append(f"Images a class: {case.classed}, read as {case.images} each, of "
                     f"{'two' if case.skew == TWO else CLASSES} classes{more}")
    if case.disjoint:
        lines.append(f"Only cells in which no two clients share a class: of {CLASSES} classes at "
                     f"most {CLASSES // 2} clients with two each. Runs: the setting disjoint in "
                     f"{RUNS}")
    lines.append(f"{'set':<{wide}} {'clients x images':>16}  {'alone':>6}  {'together':>8}  "
                 f"{'gain (95 %)':>14}  {'all classes':>11}  {'lose':>5}")
    for name, cell in cells.items():
        if cell is None:
            there = [r for r in every if r["set"] == name]
            why = f"no cell near: {_why(case.on(name), there)}" if there else (
                "was not run with simulated scanners")
            lines.append(f"{name:<{wide}} {why}")
            continue
        a, b = cell[ALONE], cell[TOGETHER]
        alike = [r for r in every if all(r[c] == b[c] for c in ("set", "clients", "images"))]
        half = cell_interval(_draws(b), map(_draws, alike))
        gains.append((float(b["gain"]), math.nan if half is None else half))
        found.append(_record(a, b, half))
        size = f"{a['clients']} x {a['images']}"
        error = "(one draw)" if half is None else f"+- {half:.1f}"
        gain = f"{float(b['gain']):+.1f} {error}"
        even = float(b["balanced"]) - float(a["balanced"])
        lines.append(f"{name:<{wide}} {size:>16}  {float(a['personal']):>6.1f}  "
                     f"{float(b['personal']):>8.1f}  {gain:>14}  {even:>+11.1f}  "
                     f"{float(b['hurt']):>3.0f} %")
    verdict = _conclusion(gains, len(cells) - len(gains))
    return MapAdvice([
        *lines, f"Verdict: {verdict}",
        "These are public sets, and runs gain less than the map says (docs/results/map/README.md); "
        "your own images tell more: fedvlm advise --images FOLDER"], found, verdict)


def _why(case: Case, rows: Sequence[Row]) -> str:
    """Return why the map has no cell near a case."""
    for name, asked in (("clients", case.clients), ("images", case.images)):
        most = max(int(row[name]) for row in rows)
        if math.log(asked / most) > FAR:
            return f"its cells end at {most} {name}{' a client' if name == 'images' else ''}"
    return "the map has only a part of its cases"


def _record(alone: Row, together: Row, margin: float | None) -> dict[str, Any]:
    """Return a cell as plain JSON; no margin is known of one draw."""
    sides = {side: {name: float(row[name]) for name in ("personal", "balanced")}
             for side, row in ((ALONE, alone), (TOGETHER, together))}
    return {
        "set": together["set"], "clients": int(together["clients"]),
        "images": float(together["images"]), "skew": together["skew"],
        "shift": together["shift"] == "yes", "draws": int(together["seeds"]), **sides,
        "gain": float(together["gain"]), "margin": margin, "hurt": float(together["hurt"]),
    }


def _draws(row: Row) -> tuple[int, float]:
    """Return how many draws a cell has, and the standard error of their mean gain."""
    return int(row["seeds"]), float(row["gain_se"])


def _nearest(case: Case, rows: Sequence[Row]) -> dict[str, Row] | None:
    """Return the rows by method of the nearest cell; None where none is near."""
    def distance(row: Row) -> float:
        return max(abs(math.log(float(row["clients"]) / case.clients)),
                   abs(math.log(float(row["images"]) / case.images)))

    usable = [r for r in rows if r["method"] == TOGETHER]
    if not usable:
        return None
    best = min(usable, key=distance)
    if distance(best) > FAR:
        return None
    same = {r["method"]: r for r in rows
            if (r["clients"], r["images"]) == (best["clients"], best["images"])}
    return same if ALONE in same else None


def _conclusion(gains: Sequence[tuple[float, float]], missing: int) -> str:
    """Return the verdict over sets.

    Args:
        missing: sets without a cell near the case.
    """
    if not gains:
        return "cannot say: the map has no cell near this case."
    up = sum(gain - margin > 0 and gain >= 1 for gain, margin in gains)
    down = sum(gain + margin < 2 for gain, margin in gains)
    rest = f"; {missing} set{'s have' if missing > 1 else ' has'} no such cell" if missing else ""
    if up == len(gains):
        return f"federate: together is clearly better on {up} of {up} sets{rest}."
    if down == len(gains):
        return ("do not federate for own accuracy: less than 2 points to gain on "
                f"{down} of {down} sets{rest}.")
    return (f"cannot say: together is clearly better on {up} of {len(gains)} sets, "
            f"without a gain of 2 points on {down}{rest}.")
