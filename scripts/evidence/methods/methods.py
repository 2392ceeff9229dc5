"""The map's methods: real runs on twelve cells, on further axes, and in every fourth cell.

Runs the plans of ``configs/results/map`` (each may be interrupted and goes on) and FedAvg and Ditto
on the clients of every fourth cell of the map, then writes ``methods.md`` with its tables and
figures into FOLDER. Runs that are missing are shown as missing.
"""

from __future__ import annotations

import csv
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evidence.methods.figure import draw_fixed, draw_methods
from evidence.methods.page import page_of
from evidence.methods.real import PLAN, read_real, write_plan
from evidence.methods.runs import COLUMNS, read_plans, rows_of
from fedvlm.cli import main as cli
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import user_path, write_text
from fedvlm.report.collect import collect
from fedvlm.runs.cells import ENDING, folders_of, pack_runs, run_names

PLANS, CELLS, REAL = "configs/results/map", "cells", "real.csv"
TUNED = "docs/results/tuned.json"
EXAMPLES = (
    "python scripts/evidence methods docs/results/map --backbone ViT-B/16 --runs output/map",
    "python scripts/evidence methods docs/results/map --table-only  # the page from its cells",
)


def flags(parser: Parser) -> None:
    """Add what the command takes."""
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="where the page goes, and its cells/")
    add("--backbone", default="", metavar="NAME", help="whose image features the map used")
    add("--runs", default="output/map", metavar="FOLDER",
        help="where the map's packs and the runs are (output/map)")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N", help="(1 2 3)")
    add("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    add("--table-only", action="store_true", help="run nothing")


def main(args: Namespace) -> int:
    """Run what is missing, pack the runs, and write the page.

    Raises:
        ConfigError: no backbone to run with, or no run at all.
        DataError: runs are damaged, or the folder cannot be written.
    """
    runs, into = user_path(args.runs), user_path(args.folder)
    if not args.table_only:
        if not args.backbone:
            raise ConfigError("give --backbone NAME, whose features the map used, or --table-only")
        _run_all(runs, args.backbone, args.seeds, args.jobs)
    into.mkdir(parents=True, exist_ok=True)
    _pack(Path("output/map"), into / CELLS)
    real = read_real(runs)
    if real:
        _write_csv(into / REAL, real, tuple(real[0]))
    real = _read_csv(into / REAL)
    plans = read_plans(Path(PLANS))
    packs = sorted((into / CELLS).glob(f"*{ENDING}"))
    rows = rows_of(plans, collect(packs).runs) if packs else []
    if not rows and not real:
        raise ConfigError(f"{into / CELLS} has no runs of {PLANS}: leave --table-only away")
    _write_csv(into / "methods.csv", rows, COLUMNS)
    draw_methods(plans, rows, into)
    draw_fixed(real, into)
    write_text(into / "methods.md", page_of(plans, rows, real))
    say(f"{len(rows)} runs of {sum(len(p.planned()) for p in plans)} planned and {len(real)} in "
        f"drawn cells; wrote {into}: methods.md, methods.csv, {REAL}, methods.png, fixed.png")
    return 0


def _run_all(runs: Path, backbone: str, seeds: Sequence[int], jobs: int) -> None:
    """Run all plans, the first seed of each first; cells that fail are shown as missing."""
    drawn = write_plan(runs, backbone)
    first, rest = [str(seeds[0])], [str(seed) for seed in seeds[1:]]
    for several in filter(None, (first, rest)):
        for path in sorted(Path(PLANS).glob("*.yaml")):
            cli.main(["sweep", str(path), "--seeds", *several, "--tuned", TUNED, "--jobs",
                      str(jobs)])
        if several is first:
            cli.main(["sweep", str(drawn), "--tuned", TUNED, "--jobs", str(jobs)])


def _pack(output: Path, into: Path) -> None:
    """Pack the finished runs of each folder of ``output``, with those that only the pack has."""
    for folder in sorted(output.iterdir()) if output.is_dir() else ():
        found = collect([folder]).runs if (folder / "sweeps").is_dir() else []
        if not found or folder.name == Path(PLAN).stem:
            continue
        into.mkdir(parents=True, exist_ok=True)
        path = into / f"{folder.name}{ENDING}"
        names = {run.path.relative_to(folder).as_posix(): run.path for run in found}
        if path.is_file():
            (old,) = folders_of(path)
            names |= {name: old / name for name in run_names(path) - names.keys()}
        pack_runs(names.items(), path)


def _write_csv(path: Path, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(columns)
        out.writerows([f"{v:.2f}" if isinstance(v, float) else "" if v is None else v
                       for v in (row[name] for name in columns)] for row in rows)


def _read_csv(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: _value(k, v) for k, v in row.items()} for row in csv.DictReader(file)]


def _value(name: str, word: str) -> Any:
    if name in ("set", "skew", "method"):
        return word
    if name == "shift":
        return word == "True"
    return float(word) if word else None
