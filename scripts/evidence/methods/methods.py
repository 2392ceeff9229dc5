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

from evidence.flags import add_folder, add_map_runs, add_names, make_folder
from evidence.map.table import read_table
from evidence.methods.figure import draw_fixed, draw_methods
from evidence.methods.page import cases_of, page_of, words_of
from evidence.methods.real import RUNS as DRAWN
from evidence.methods.real import read_real, write_plan
from evidence.methods.runs import COLUMNS, read_plans, rows_of
from evidence.results.lanes import share_baselines
from fedvlm.cli import main as cli
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import write_text
from fedvlm.report.collect import collect
from fedvlm.runs.cells import ENDING, folders_of, pack_runs, run_names

PLANS = Path(__file__).resolve().parents[3] / "configs" / "results" / "map"
CELLS, REAL = "cells", "real.csv"
TUNED = "docs/results/tuned.json"
EXAMPLES = (
    "python scripts/evidence methods docs/results/map --backbone ViT-B/16 --runs output/map",
    "python scripts/evidence methods docs/results/map --table-only  # the page from its cells",
)


def flags(parser: Parser) -> None:
    """Add what the command takes."""
    add = parser.add_argument
    add_folder(parser, "folder", "where the page goes, and its cells/")
    add("--backbone", default="", metavar="NAME", help="whose image features the map used")
    add_names(parser, "--only", [*(plan.name for plan in read_plans(PLANS)), DRAWN], "PLAN",
              "the plans to run, ")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N", help="(1 2 3)")
    add("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    add_map_runs(parser, "--backbone")


def main(args: Namespace) -> int:
    """Run what is missing, pack the runs, and write the page.

    Raises:
        ConfigError: there is no run at all.
        DataError: runs are damaged, or the folder cannot be written.
    """
    runs, into = make_folder(args.runs), make_folder(args.folder)
    if not args.table_only:
        _run_all(runs, args)
    plans = read_plans(PLANS)
    _pack([runs / name for name in sorted({plan.output for plan in plans})], into / CELLS)
    real = read_real(runs)
    if real:
        _write_csv(into / REAL, real, tuple(real[0]))
    real = _read_csv(into / REAL)
    packs = sorted((into / CELLS).glob(f"*{ENDING}"))
    (runs_there,) = share_baselines([collect(packs).runs if packs else []])
    rows = rows_of(plans, runs_there)
    if not rows and not real:
        raise ConfigError(f"{into / CELLS} has no runs of {PLANS}: leave --table-only away")
    _write_csv(into / "methods.csv", rows, COLUMNS)
    draw_methods(plans, rows, into)
    draw_fixed(real, into)
    write_text(into / "methods.md", page_of(plans, rows, real, read_table(into / "map.csv")))
    write_text(into / "methods.txt", words_of(rows, real) + "\n")
    write_text(into / "cases.txt", cases_of(rows) + "\n")
    say(f"{len(rows)} runs of {sum(len(p.planned()) for p in plans)} planned and {len(real)} in "
        f"drawn cells; wrote {into}: methods.md, methods.csv, {REAL}, methods.png, fixed.png")
    return 0


def _run_all(runs: Path, args: Namespace) -> None:
    """Run the plans, the first seed of each first; cells that fail are shown as missing."""
    common = ["--tuned", TUNED, "--jobs", str(args.jobs)]
    plans = [plan for plan in read_plans(PLANS) if not args.only or plan.name in args.only]
    seeds = [str(seed) for seed in args.seeds]
    for several in filter(None, (seeds[:1], seeds[1:])):
        for plan in plans:
            cli.main(["sweep", str(plan.path), "--seeds", *several, "--output-dir",
                      str(runs / plan.output), *common])
        if several == seeds[:1] and (not args.only or DRAWN in args.only):
            cli.main(["sweep", str(write_plan(runs, args.backbone)), *common])


def _pack(folders: Sequence[Path], into: Path) -> None:
    """Pack the finished runs of each folder, with those that only the pack has."""
    for folder in folders:
        found = collect([folder]).runs if folder.is_dir() else []
        if not found:
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
