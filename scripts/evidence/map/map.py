"""The map: when federation pays, over clients, images a client, label skew and feature shift.

Linear heads on frozen features at their fixed points: the most that heads reach, no statement on
rounds or prompts. Encodes each set once into FOLDER, runs the cells (each may be interrupted and
goes on), and writes a page with map.csv and map.png. "Alone" is each client's own logistic
regression; "together" is the best of four ways to share a head, chosen on validation images.
"""

from __future__ import annotations

import itertools
import json
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from evidence.flags import add_folder, add_map_runs, add_names, make_folder
from evidence.map.cell import measure
from evidence.map.deal import SKEWS
from evidence.map.figure import draw_map
from evidence.map.images import SETS, SHIFTED, Features, pack_set, read_features
from evidence.map.page import page_of, words_of
from evidence.map.table import summarize, write_table
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import write_text

CLIENTS = (2, 5, 10, 20, 50, 100)
IMAGES = (5, 10, 25, 50, 100, 200)
SEEDS = 20
Key = tuple[int, int, str, bool, int]  # clients, images, skew, shift, seed
EXAMPLES = (
    "python scripts/evidence map docs/results/map --root DATA/ --backbone ViT-B/16",
    "python scripts/evidence map docs/results/map --table-only  # from the runs that are there",
)


def flags(parser: Parser) -> None:
    """Add what the command takes."""
    add = parser.add_argument
    add_folder(parser, "folder", "where the page goes")
    add("--root", default="", metavar="DATA", help="folder of the data sets")
    add("--backbone", default="", metavar="NAME", help="whose image features are used")
    add_names(parser, "--sets", list(SETS), default=SETS)
    add("--seeds", type=int, default=SEEDS, metavar="N", help=f"draws of each cell ({SEEDS})")
    add("--jobs", type=int, default=2, metavar="N", help="processes (2)")
    add_map_runs(parser, "--root", "--backbone")


def main(args: Namespace) -> int:
    """Run what is missing, then write the table and the figure.

    Raises:
        ConfigError: no cell has been run.
        DataError: images cannot be read, or the folder not be written.
    """
    runs = make_folder(args.runs)
    if not args.table_only:
        for name in args.sets:
            pack_set(name, args.root, args.backbone, runs)
        _run_all(args.sets, runs, args.seeds, args.jobs)
    rows = [row for name in SETS for row in read_rows(rows_file(runs, name))]
    if not rows:
        raise ConfigError(f"{runs} has no cells of the map yet: leave --table-only away")
    into = make_folder(args.folder)
    summary = summarize(rows)
    write_table(summary, into / "map.csv")
    draw_map(summary, into)
    write_text(into / "README.md", page_of(summary, rows))
    write_text(into / "words.txt", words_of(summary) + "\n")
    say(f"{len(rows)} cells of {len({row['set'] for row in rows})} sets; wrote {into}: README.md, "
        "map.csv, map.png, map-balanced.png")
    return 0


def rows_file(runs: Path, name: str) -> Path:
    """Return the file of a set's cells, a line of JSON each."""
    return runs / f"{SETS[name]}.jsonl"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a file; the last line may be half written."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def keys_of(name: str, size: int, seeds: int) -> Iterator[Key]:
    """Yield the cells that a set of ``size`` training images has room for, seed by seed."""
    for seed, skew, shift in itertools.product(range(1, seeds + 1), SKEWS, (False, True)):
        if shift and name not in SHIFTED:
            continue
        for clients, images in itertools.product(CLIENTS, IMAGES):
            if clients * images <= size:
                yield clients, images, skew, shift, seed


def _run_all(names: list[str], runs: Path, seeds: int, jobs: int) -> None:
    for name in names:
        data = read_features(name, runs)
        path = rows_file(runs, name)
        done = {_key(row) for row in read_rows(path)}
        wanted = [k for k in keys_of(name, len(data.train.labels), seeds) if k not in done]
        say(f"{name}: {len(wanted)} cells to run, {len(done)} done")
        with (ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (name, runs)) as pool,
              path.open("a", encoding="utf-8") as out):
            for key, numbers in zip(wanted, pool.map(_one, wanted, chunksize=4), strict=True):
                clients, images, skew, shift, seed = key
                row = {"set": name, "clients": clients, "images": images, "skew": skew,
                       "shift": shift, "seed": seed, "numbers": numbers}
                out.write(json.dumps(row) + "\n")
                out.flush()


def _key(row: dict[str, Any]) -> Key:
    return row["clients"], row["images"], row["skew"], row["shift"], row["seed"]


_DATA: dict[str, Features] = {}  # of a process of the pool


def _begin(name: str, runs: Path) -> None:
    torch.set_num_threads(1)
    _DATA["set"] = read_features(name, runs)


def _one(key: Key) -> dict[str, dict[str, float]]:
    return measure(_DATA["set"], *key)
