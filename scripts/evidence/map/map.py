"""The map: when federation pays, over clients, images a client, label skew and feature shift.

Linear heads on frozen features at their fixed points: the most that heads reach, no statement on
rounds or prompts. Encodes each set once into FOLDER, runs the cells (each may be interrupted and
goes on), and writes map.csv, and the page and figures made of it. "Alone" is each client's own
logistic regression; "together" is the best of four ways to share a head, chosen on validation
images. Rows of a set that --runs lacks stay in map.csv as they are.
"""

from __future__ import annotations

import itertools
import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from evidence.flags import add_folder, add_map_runs, add_names, make_folder
from evidence.map.cell import measure
from evidence.map.deal import MOST, SKEWS
from evidence.map.dealt import read_dealt, write_dealt
from evidence.map.figure import FIGURES, draw_map
from evidence.map.images import SETS, SHIFTED, Features, pack_set, read_features
from evidence.map.page import page_of, words_of
from evidence.map.table import join_tables, read_table, summarize, write_table
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import write_text

CLIENTS = (2, 5, 10, 20, 50, 100)
IMAGES = (5, 10, 25, 50, 100, 200)
SEEDS = 20
Row = dict[str, Any]
Key = tuple[int, int, str, bool, int]  # clients, images, skew, shift, seed
EXAMPLES = (
    "python scripts/evidence map docs/results/map --root DATA/ --backbone ViT-B/16",
    "python scripts/evidence map docs/results/map --table-only  # page and figures from map.csv",
)


def flags(parser: Parser) -> None:
    """Add what the command takes."""
    add = parser.add_argument
    add_folder(parser, "folder", "where the page goes")
    add("--root", default="", metavar="DATA", help="folder of the data sets")
    add("--backbone", default="", metavar="NAME", help="whose image features are used")
    add_names(parser, "--sets", list(SETS), default=SETS)
    add("--seeds", type=int, default=SEEDS, metavar="N", help=f"draws of each cell ({SEEDS})")
    for flag, numbers in (("--clients", CLIENTS), ("--images", IMAGES)):
        add(flag, type=int, nargs="+", default=numbers, metavar="N",
            help=f"run cells with these only ({', '.join(map(str, numbers))})")
    add("--jobs", type=int, default=2, metavar="N", help="processes (2)")
    add_map_runs(parser, "--root", "--backbone")


def main(args: Namespace) -> int:
    """Run what is missing, then write the table, and the page and figures from it.

    Raises:
        ConfigError: no cell has been run.
        DataError: images cannot be read, or the folder not be written.
    """
    runs = make_folder(args.runs)
    if not args.table_only:
        for name in args.sets:
            pack_set(name, args.root, args.backbone, runs)
        _run_all(args, runs)
    into = make_folder(args.folder)
    if not args.table_only and set(SHIFTED) <= set(args.sets):
        write_dealt(runs, into, args.seeds)
    table = into / "map.csv"
    cells = [row for name in SETS for row in read_rows(rows_file(runs, name))]
    rows = join_tables(summarize(cells), read_table(table))
    if not rows:
        raise ConfigError(f"{runs} has no cells of the map yet: leave --table-only away")
    write_table(rows, table)
    write_pages(read_table(table), into)
    say(f"{len(cells)} draws in {runs}, {len({row['set'] for row in rows})} sets in {table}; wrote "
        f"{into}: README.md, map.csv, {', '.join(f'{name}.png' for name in FIGURES)}")
    return 0


def write_pages(rows: Sequence[Row], into: Path) -> None:
    """Write the page, its figures and its words, from ``map.csv``, and ``dealt.csv`` there."""
    draw_map(rows, into)
    dealt = read_dealt(into)
    write_text(into / "README.md", page_of(rows, dealt))
    write_text(into / "words.txt", words_of(rows, dealt) + "\n")


def rows_file(runs: Path, name: str) -> Path:
    """Return the file of a set's cells, a line of JSON each."""
    return runs / f"{SETS[name]}.jsonl"


def read_rows(path: Path) -> list[Row]:
    """Return the cells of a file; the last line may be half written."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def keys_of(name: str, size: int, seeds: int) -> Iterator[Key]:
    """Yield the cells that a set of ``size`` training images has room for, seed by seed.

    None has more than ``MOST`` images.
    """
    for seed, skew, shift in itertools.product(range(1, seeds + 1), SKEWS, (False, True)):
        if shift and name not in SHIFTED:
            continue
        for clients, images in itertools.product(CLIENTS, IMAGES):
            if clients * images <= min(size, MOST):
                yield clients, images, skew, shift, seed


def _run_all(args: Namespace, runs: Path) -> None:
    for name in args.sets:
        data = read_features(name, runs)
        path = rows_file(runs, name)
        done = {_key(row) for row in read_rows(path)}
        wanted = [k for k in keys_of(name, len(data.train.labels), args.seeds)
                  if k not in done and k[0] in args.clients and k[1] in args.images]
        say(f"{name}: {len(wanted)} cells to run, {len(done)} done")
        with (ProcessPoolExecutor(args.jobs, get_context("spawn"), _begin, (name, runs)) as pool,
              path.open("a", encoding="utf-8") as out):
            for key, numbers in zip(wanted, pool.map(_one, wanted, chunksize=4), strict=True):
                clients, images, skew, shift, seed = key
                row = {"set": name, "clients": clients, "images": images, "skew": skew,
                       "shift": shift, "seed": seed, "numbers": numbers}
                out.write(json.dumps(row) + "\n")
                out.flush()


def _key(row: Row) -> Key:
    return row["clients"], row["images"], row["skew"], row["shift"], row["seed"]


_DATA: dict[str, Features] = {}  # of a process of the pool


def _begin(name: str, runs: Path) -> None:
    torch.set_num_threads(1)
    _DATA["set"] = read_features(name, runs)


def _one(key: Key) -> dict[str, dict[str, float]]:
    return measure(_DATA["set"], *key)
