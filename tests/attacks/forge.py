"""Run folders damaged by chance, edited, or edited and sealed again with our own functions."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedvlm.runs import private
from fedvlm.runs.bits import PAIRED, both_rows
from fedvlm.runs.metrics import append_metrics, read_metrics
from fedvlm.runs.seal import seal_of
from fedvlm.runs.verify.answer import federation_answer
from fedvlm.runs.verify.beside import better as better_ones
from fedvlm.runs.verify.beside import gain, hurt, reference_kind
from fedvlm.runs.verify.cover import cover
from fedvlm.runs.verify.numbers import DERIVED

PICTURES = (".png", ".svg", ".html")  # made again from the rest, covered by nothing


def flip(folder: Path, seed: int) -> str:
    """Change one bit of one file below ``folder``; return the file's name."""
    draw = random.Random(seed)
    files = sorted(p for p in folder.rglob("*")
                   if p.is_file() and p.suffix not in PICTURES and p.name != private.NAME)
    path = draw.choice(files)
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(bytes(data))
    return str(path.relative_to(folder))


def unfinish(folder: Path) -> None:
    """Take a finished run of two rounds back to a kill between metrics and state of round 2."""
    for path in [folder / "results.json", *folder.glob("state/round_0002.*"),
                 *folder.glob("state/*/r000002.*")]:
        path.unlink()
    index = folder / "state" / "index.json"
    index.write_text(index.read_text().replace("round_0002", "round_0001"))


def copy(folder: Path, to: Path) -> Path:
    """Copy a run folder to its place below another OUTPUT_DIR."""
    shutil.copytree(folder, to)
    return to


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what a JSON file holds and seal it again."""
    record = json.loads(path.read_bytes())
    change(record)
    if "seal" in record:
        record["seal"] = seal_of(record)
    path.write_text(json.dumps(record))


def better(numbers: dict[str, Any]) -> None:
    """Let every client have every image right, and all that follows from the rows follow."""
    for row in numbers["clients"]:
        row |= {"correct": row["n"], "accuracy": 100.0}
    derive(numbers)


def derive(numbers: dict[str, Any]) -> None:
    """Let what follows from the rows follow."""
    for name, (rows, formula) in DERIVED.items():
        if name in numbers and numbers.get(rows):
            with contextlib.suppress(KeyError):  # no row has it: null in a run without final steps
                numbers[name] = formula(numbers[rows], numbers)


def edit_round(folder: Path, at: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what a round's record holds, and seal the rounds and their states again."""
    path = folder / "metrics.jsonl"
    records, _ = read_metrics(path)
    change(records[at])
    path.unlink()
    seals = [append_metrics(path, record) for record in records]
    for state in sorted(folder.glob("state/round_*.json")):
        edit(state, lambda r: r["extra"].update(metrics=seals[r["round"]]))


def forge(folder: Path) -> None:
    """Make the last round perfect in every file, and seal all of them again."""
    edit_round(folder, -1, better)

    def results(record: dict[str, Any]) -> None:
        better(record["results"]["last"])
        row = record["results"]["table"][-1]
        row |= {name: record["results"]["last"].get(name, old) for name, old in row.items()}
        numbers, last = record["results"], record["results"]["last"]
        if "references" in numbers:
            found = numbers["references"]
            numbers |= {"gain": gain(last["personal"], found), "hurt": hurt(last["clients"], found)}
            worse = dict(better_ones(last["personal"], found, reference_kind(numbers["spent"])))
            numbers["below"] = [one for one in numbers["below"] if one["reference"] in worse]
            pair_again(numbers)
            numbers["answer"] = federation_answer(numbers)
        record["covers"] = cover(folder)

    edit(folder / "results.json", results)


def pair_again(numbers: dict[str, Any]) -> None:
    """Give each pair of models counts of unlike images that fit the clients' rows."""
    for name, one in numbers.get(PAIRED, {}).items():
        sides = [numbers["last"] if side == "last" else numbers["references"][side]
                 for side in name.split("|")]
        one["differ"] = {str(a["client"]): abs(a["correct"] - b["correct"])
                         for a, b in both_rows(*(side["clients"] for side in sides))}
