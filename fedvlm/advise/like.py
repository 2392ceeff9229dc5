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
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.core.stats import pooled_interval

PLACE = Path("docs/results/map/map.csv")  # in the checkout
SKEWS = {"two classes": 0.05, "0.1": 0.1, "0.3": 0.3, "1": 1.0, "even": 100.0}
WORDS = {"even": "even", "iid": "even", "disjoint": "two classes", "two": "two classes",
         "two classes": "two classes"}
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
    r"cent(er|re)s?|images?|samples?)(\s+(each|a client))?")
_EXAMPLE = '"10 clients, 4 images, skew 0.3"'


@dataclass(frozen=True)
class Case:
    """What is asked: clients, images of each, skew as the map has it, feature shift."""

    clients: int
    images: int
    skew: str
    shift: bool = False


def read_case(text: str) -> Case:
    """Return the case that words describe.

    Raises:
        ConfigError: clients, images or skew are missing, or a word is not understood.
    """
    found: dict[str, str] = {}
    shift = False
    for part in filter(None, (p.strip().lower() for p in re.split(r"[,;]", text))):
        number = _NUMBER.fullmatch(part)
        skew = re.fullmatch(r"(?:skew|beta|dirichlet)?\s*=?\s*(?P<v>[a-z ]+|\d*\.?\d+)", part)
        if number:
            images = number["what"].startswith(("image", "sample"))
            found["images" if images else "clients"] = str(_COUNTS.get(number["n"], number["n"]))
        elif part in ("shift", "scanners", "domains"):
            shift = True
        elif skew and (skew["v"].strip() in WORDS or skew["v"][0].isdigit() or skew["v"][0] == "."):
            found["skew"] = _nearest_skew(skew["v"].strip())
        else:
            raise ConfigError(f"--like does not understand '{part}'; write it like {_EXAMPLE} "
                              "(skew: a number, iid or disjoint; add shift where clients differ "
                              "by scanner)")
    lacking = [name for name in ("clients", "images", "skew") if name not in found]
    if lacking:
        raise ConfigError(f"--like lacks {' and '.join(lacking)}; write it like {_EXAMPLE}")
    case = Case(int(found["clients"]), int(found["images"]), found["skew"], shift)
    if case.clients < 2 or case.images < 1:
        raise ConfigError("--like needs at least 2 clients and 1 image")
    return case


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


def like_lines(text: str, file: Path) -> list[str]:
    """Return what the map says of a case, a line for each set.

    Raises:
        ConfigError: the case is not understood.
        DataError: the map is damaged.
    """
    case, rows = read_case(text), read_map(file)
    shift = "yes" if case.shift else "no"
    every = [r for r in rows if r["shift"] == shift and r["method"] == TOGETHER]
    rows = [r for r in rows if r["skew"] == case.skew and r["shift"] == shift]
    names = list(dict.fromkeys(r["set"] for r in rows))
    cells = {name: _nearest(case, [r for r in rows if r["set"] == name]) for name in names}
    where = " with another scanner at each client" if case.shift else ""
    gains = []
    wide = max(map(len, ["set", *names]))
    lines = [f"The map's cells nearest to {case.clients} clients, {case.images} images each, "
             f"skew {case.skew}{where}: linear heads at the end of training"]
    lines.append(f"{'set':<{wide}} {'clients x images':>16}  {'alone':>6}  {'together':>8}  "
                 f"{'gain (95 %)':>14}  {'balanced':>8}  {'worse off':>9}")
    for name, cell in cells.items():
        if cell is None:
            lines.append(f"{name:<{wide}} no cell near: the set has too few images")
            continue
        a, b = cell[ALONE], cell[TOGETHER]
        alike = [r for r in every if all(r[c] == b[c] for c in ("set", "clients", "images"))]
        half = pooled_interval([(int(r["seeds"]), float(r["gain_se"])) for r in alike],
                               int(b["seeds"]))
        gains.append((float(b["gain"]), math.nan if half is None else half))
        size = f"{a['clients']} x {a['images']}"
        error = "(one draw)" if half is None else f"+- {half:.1f}"
        gain = f"{float(b['gain']):+.1f} {error}"
        even = float(b["balanced"]) - float(a["balanced"])
        lines.append(f"{name:<{wide}} {size:>16}  {float(a['personal']):>6.1f}  "
                     f"{float(b['personal']):>8.1f}  {gain:>14}  {even:>+8.1f}  "
                     f"{float(b['hurt']):>7.0f} %")
    return [*lines, _conclusion(gains), "These are public sets; your own images tell more: "
            "fedvlm advise --images FOLDER"]


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


def _conclusion(gains: Sequence[tuple[float, float]]) -> str:
    """Return the verdict over sets."""
    if not gains:
        return "Verdict: cannot say: the map has no cell near this case."
    up = sum(gain - margin > 0 and gain >= 1 for gain, margin in gains)
    down = sum(gain + margin < 2 for gain, margin in gains)
    if up == len(gains):
        return f"Verdict: federate: together is clearly better on {up} of {up} sets."
    if down == len(gains):
        return ("Verdict: do not federate for own accuracy: less than 2 points to gain on "
                f"{down} of {down} sets.")
    return (f"Verdict: cannot say: together is clearly better on {up} of {len(gains)} sets, "
            f"without a gain of 2 points on {down}.")
