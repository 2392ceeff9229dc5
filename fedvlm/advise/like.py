"""The map of earlier trials, read for a case in words: ``--like "10 clients, 4 images, skew 0.3"``.

The map is a table, ``map.csv``: a row for each cell and method, columns at least ``set``,
``clients``, ``images`` (of each client, on average), ``skew`` (``even``, ``two classes``, or the
concentration of a Dirichlet distribution: the smaller, the more unlike the clients), ``shift``
(``yes`` where each client has another scanner), ``method`` (``alone`` and those of ``METHODS``),
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

from fedvlm.advise.ways import (
    AFL,
    AFL_PRIOR,
    ALONE_DOES,
    ALONE_FLAGS,
    CLEAR,
    DITTO,
    FEDAVG,
    FEDERATE,
    LOGREG,
    SMALL,
    TOGETHER,
    UNKNOWN,
    WORDS,
    cost_words,
    end_lines,
    method_flags,
    short_name,
    simplest_way,
)
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.core.stats import cell_interval

PLACE = Path("docs/results/map/map.csv")  # in the checkout
TWO, EVEN = "two classes", "even"
SKEWS = {TWO: 0.05, "0.1": 0.1, "0.3": 0.3, "1": 1.0, EVEN: 100.0}
NAMED = {
    "even": EVEN, "evenly": EVEN, "iid": EVEN, "same classes": EVEN, "all classes": EVEN,
    "all classes evenly": EVEN, "two": TWO, "two classes": TWO, "two classes each": TWO,
    "disjoint": TWO, "own classes": TWO, "classes of their own": TWO,
}
DISJOINT = ("disjoint", "own classes", "classes of their own")
RUNS = "docs/results/should_we_federate.md"
CLASSES = 10  # of the sets of the map
MORE_CLASSES = {"Caltech101": 101}
ALONE = "alone"
METHODS = {"ridge": AFL, "ridge+shares": AFL_PRIOR, "shared": FEDAVG, "personal": DITTO}
RUN = "fedvlm run --images FOLDER --clients-by '{client}/{class}/*'"
BACKBONE, WIDTH = "ViT-B/16", 512  # of which bytes are told: the default, and its features
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
        elif skew and (skew["v"].strip() in NAMED or skew["v"][0].isdigit() or skew["v"][0] == "."):
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
    if word in NAMED:
        return NAMED[word]
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
        if unseen := [name for name in (ALONE, *METHODS) if all(r["method"] != name for r in rows)]:
            raise DataError(f"{file} is no map: it lacks rows of {', '.join(unseen)}")
        for row in rows:
            for name in ("clients", "images", "personal", "balanced", "hurt", "gain", "gain_se"):
                float(row[name])
    except (OSError, UnicodeDecodeError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as a map: {error}") from error
    return rows


@dataclass(frozen=True)
class MapAdvice:
    """What the map says of a case: as text, and as plain JSON."""

    lines: list[str]
    record: dict[str, Any]


@dataclass(frozen=True)
class MapCell:
    """A cell of the map.

    Attributes:
        alone: its row.
        ways: by way of ``TOGETHER``, its row.
        margins: by way, half the 95 % interval of its gain; inf of one draw.
    """

    alone: Row
    ways: Mapping[str, Row]
    margins: Mapping[str, float]

    def gain(self, way: str) -> float:
        """Return what a way gains over working alone, in points."""
        return float(self.ways[way]["gain"])

    def line(self, way: str, wide: int) -> str:
        """Return the cell as a line of the table; the set's name is ``wide``."""
        a, b, half = self.alone, self.ways[way], self.margins[way]
        gain = f"{self.gain(way):+.1f} {'(one draw)' if math.isinf(half) else f'+- {half:.1f}'}"
        even = float(b["balanced"]) - float(a["balanced"])
        return (f"{a['set']:<{wide}} {a['clients'] + ' x ' + a['images']:>16}  "
                f"{float(a['personal']):>6.1f}  {float(b['personal']):>8.1f}  {gain:>14}  "
                f"{even:>+11.1f}  {float(b['hurt']):>3.0f} %")

    def record(self, way: str) -> dict[str, Any]:
        """Return the cell as plain JSON; no margin is known of one draw."""
        a, b, half = self.alone, self.ways[way], self.margins[way]
        sides = {side: {name: float(row[name]) for name in ("personal", "balanced")}
                 for side, row in (("alone", a), ("together", b))}
        return {
            "set": a["set"], "clients": int(a["clients"]), "images": float(a["images"]),
            "skew": a["skew"], "shift": a["shift"] == "yes", "draws": int(b["seeds"]), **sides,
            "gain": self.gain(way), "margin": None if math.isinf(half) else half,
            "hurt": float(b["hurt"]), "gains": {name: self.gain(name) for name in self.ways},
        }


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
    cells = {name: _nearest(case.on(name), [r for r in rows if r["set"] == name], every)
             for name in names}
    found = [cell for cell in cells.values() if cell]
    way = _way_of(found)
    wide = max(map(len, ["set", *names]))
    lines = [*_read_as(case, names, way),
             f"{'set':<{wide}} {'clients x images':>16}  {'alone':>6}  {'together':>8}  "
             f"{'gain (95 %)':>14}  {'all classes':>11}  {'lose':>5}"]
    for name, cell in cells.items():
        there = [r for r in every if r["set"] == name]
        why = f"no cell near: {_why(case.on(name), there)}" if there else (
            "was not run with simulated scanners")
        lines.append(cell.line(way, wide) if cell else f"{name:<{wide}} {why}")
    kind, why = _conclusion([(cell.gain(way), cell.margins[way]) for cell in found],
                            len(cells) - len(found))
    verdict = f"{kind}{why}"
    record: dict[str, Any] = {"cells": [cell.record(way) for cell in found], "verdict": verdict}
    lines.append(f"Verdict: {verdict}")
    if found:
        command, alone = f"{RUN} {method_flags(way)}", ""
        cost = (f"{cost_words(way, WIDTH, CLASSES)}, with {CLASSES} classes and {WIDTH} features "
                f"({BACKBONE})")
        record |= {"method": way, "gains": {name: _mean_gain(found, name) for name in TOGETHER},
                   "command": command, "cost": cost}
        if kind == ALONE_DOES:
            record["alone_command"] = alone = f"{RUN} {ALONE_FLAGS[LOGREG]}"
        lines += [_ways_words(found, way), *end_lines(kind, command, cost, alone)]
    return MapAdvice([
        *lines,
        "These are public sets, and runs gain less than the map says (docs/results/map/README.md); "
        "your own images tell more: fedvlm advise --images FOLDER"], record)


def _read_as(case: Case, names: Sequence[str], way: str) -> list[str]:
    """Return how the case is read, and which way is shown."""
    shown = f"; together: {WORDS[way]}" if way else ""
    lines = [f"The map's cells nearest to {case.told()}: linear heads at the end of training"
             f"{shown}"]
    if case.classed:
        more = "".join(f"; {name}: {case.on(name).images} of {count}" for name, count in
                       MORE_CLASSES.items() if name in names and case.on(name) != case)
        lines.append(f"Images a class: {case.classed}, read as {case.images} each, of "
                     f"{'two' if case.skew == TWO else CLASSES} classes{more}")
    if case.disjoint:
        lines.append(f"Only cells in which no two clients share a class: of {CLASSES} classes at "
                     f"most {CLASSES // 2} clients with two each. Runs: the setting disjoint in "
                     f"{RUNS}")
    return lines


def _why(case: Case, rows: Sequence[Row]) -> str:
    """Return why the map has no cell near a case."""
    for name, asked in (("clients", case.clients), ("images", case.images)):
        most = max(int(row[name]) for row in rows)
        if math.log(asked / most) > FAR:
            return f"its cells end at {most} {name}{' a client' if name == 'images' else ''}"
    return "the map has only a part of its cases"


def _mean_gain(cells: Sequence[MapCell], way: str) -> float:
    return sum(cell.gain(way) for cell in cells) / len(cells)


def _way_of(cells: Sequence[MapCell]) -> str:
    """Return the way to take, over the sets (``simplest_way``); empty without a cell.

    The map has no standard errors of differences between ways. They are taken as of independent
    draws, which is too much, since all ways share the draws: simple ways are taken rather often.
    """
    def lead(best: str, way: str) -> tuple[float, float]:
        margins = [cell.margins[name] for cell in cells for name in (best, way)]
        return (_mean_gain(cells, best) - _mean_gain(cells, way),
                math.hypot(*margins) / len(cells))

    return simplest_way({way: _mean_gain(cells, way) for way in TOGETHER}, lead) if cells else ""


def _ways_words(cells: Sequence[MapCell], way: str) -> str:
    """Return what each way gains, and on which sets that rests."""
    sets = [cell.alone["set"] for cell in cells]
    where = f"on {sets[0]}" if len(sets) == 1 else f"mean of {', '.join(sets)}"
    gains = ", ".join(f"{short_name(name)} {_mean_gain(cells, name):+.1f}" for name in TOGETHER)
    return (f"Gain over working alone, {where}: {gains}. Of these {short_name(way)} is the "
            f"simplest that is neither clearly nor {SMALL:.0f} points below the best.")


def _nearest(case: Case, rows: Sequence[Row], every: Sequence[Row]) -> MapCell | None:
    """Return the nearest cell of a set; None where none is near.

    Args:
        rows: of the set, of the case's skew.
        every: of all skews, which pool the variance of few draws.
    """
    def distance(row: Row) -> float:
        return max(abs(math.log(float(row["clients"]) / case.clients)),
                   abs(math.log(float(row["images"]) / case.images)))

    best = min((r for r in rows if r["method"] == ALONE), key=distance, default=None)
    if best is None or distance(best) > FAR:
        return None
    place = {name: best[name] for name in ("set", "clients", "images")}
    same = {r["method"]: r for r in rows if place.items() <= r.items()}
    if not METHODS.keys() <= same.keys():
        return None
    margins = {}
    for method, way in METHODS.items():
        alike = [r for r in every if r["method"] == method and place.items() <= r.items()]
        half = cell_interval(_draws(same[method]), map(_draws, alike))
        margins[way] = math.inf if half is None else half
    return MapCell(best, {way: same[method] for method, way in METHODS.items()}, margins)


def _draws(row: Row) -> tuple[int, float]:
    """Return how many draws a cell has, and the standard error of their mean gain."""
    return int(row["seeds"]), float(row["gain_se"])


def _conclusion(gains: Sequence[tuple[float, float]], missing: int) -> tuple[str, str]:
    """Return the verdict over sets, and the rest of its sentence.

    Args:
        missing: sets without a cell near the case.
    """
    if not gains:
        return UNKNOWN, ": the map has no cell near this case."
    up = sum(gain - margin > 0 and gain >= CLEAR for gain, margin in gains)
    down = sum(gain + margin < SMALL for gain, margin in gains)
    rest = f"; {missing} set{'s have' if missing > 1 else ' has'} no such cell" if missing else ""
    if up == len(gains):
        return FEDERATE, f": together is clearly better on {up} of {up} sets{rest}."
    if down == len(gains):
        return ALONE_DOES, (f" for own accuracy: less than {SMALL:.0f} points to gain on "
                            f"{down} of {down} sets{rest}.")
    return UNKNOWN, (f": together is clearly better on {up} of {len(gains)} sets, without a gain "
                     f"of {SMALL:.0f} points on {down}{rest}.")
