"""The page of published results, its figures and LaTeX, from packed runs.

FOLDER holds cells/ (one pack of runs for each setting) and the page made of them. --from first
packs the finished runs of OUTPUT: each folder in it is a setting. With --keep a pack keeps runs
that OUTPUT lacks; without it they are an error. Without --from no runs, data or weights are
needed. The same runs give the same bytes.
"""

from __future__ import annotations

import json
import lzma
from argparse import Namespace
from pathlib import Path
from typing import Any

from evidence.results.claims import Claim, read_claim
from evidence.results.distance import distance
from evidence.results.page import Sources, write_page
from evidence.results.plans import read_lanes
from evidence.results.search import search_of
from evidence.results.take import refuse_simulated, take
from evidence.results.tuning import Search
from fedvlm.cli.results._papers import papers_of
from fedvlm.console.parser import Parser, whole_number
from fedvlm.console.screen import complain, say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError, FedvlmError
from fedvlm.core.files import user_path
from fedvlm.federation.cards import card, card_of, fields, trainer_files
from fedvlm.report.collect import collect, run_folders
from fedvlm.report.tables.papers import paper_of
from fedvlm.runs.cells import ENDING, folders_of, pack_runs, run_names
from fedvlm.runs.seal import seal_of, seal_text
from fedvlm.sweep.tune.records import FILE, PACKED
from fedvlm.sweep.tune.tuned import read_tuned, trains_of

EXAMPLES = (
    "python scripts/evidence publish docs/results  # the page again, from docs/results/cells",
    "python scripts/evidence publish docs/results --from output/results --keep",
    "python scripts/evidence publish docs/results --take fedmgp.cells.xz --root DATA/",
)
DISTANCES, ABLATED = "distances.json", "ablation"  # a lane where it counts what moved at all
CELLS, TUNED, AGAIN, MOVED = "cells", "tuned.json", "tuned_wide.json", "processor.json"
PLANS = "configs/results"


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="folder of the page, its figures, tables and cells/")
    add("--from", dest="origin", default="", metavar="OUTPUT", help="pack the finished runs of "
        "each folder below OUTPUT into cells/ first")
    add("--keep", action="store_true", help="with --from: keep runs that cells/ has and OUTPUT "
        "lacks, for example after running only some of the plans")
    add("--plans", default=PLANS, metavar="FOLDER", help="the plans of the settings: "
        f"titles, order and numbers of planned runs ({PLANS})")
    add("--take", nargs="+", default=[], metavar="PACK", help="packs of fedvlm reproduce "
        "(sealed/*.cells.xz) from others: taken into FOLDER/reproduced after a replayed sample")
    add("--sample", type=whole_number(1), default=3, metavar="N", help="--take: runs of each "
        "pack to replay from nothing (3)")
    for word in ("root", "weights", "device"):
        add(f"--{word}", default="", metavar="WHERE", help="--take: for the replay")
    add("--tuned", default="", metavar="FILE", help="tuned.json of fedvlm tune; copied "
        "into FOLDER")


def main(args: Namespace) -> int:
    """Pack the runs where asked for, and write the page.

    Raises:
        ConfigError: a claim or a plan cannot be read, or runs of a lane share no table.
        DataError: no runs, damaged ones, or the folder cannot be written.
    """
    into, plans = user_path(args.folder), Path(args.plans)
    if args.take:
        take(args.take, into, args.sample,
             {word: getattr(args, word) for word in ("root", "weights", "device")})
        say(f"taken: {', '.join(args.take)}; see {into / 'reproduced.md'}")
        return 0
    if not plans.is_dir():
        if args.plans != PLANS:
            raise DataError(f"--plans {args.plans}: not a folder of plans (*.yaml)")
        complain(f"no folder {PLANS} here: the page has no titles and no count of planned runs "
                 "(give --plans FOLDER)", prefix="note")
    cells = into / CELLS
    if args.keep and not args.origin:
        raise ConfigError("--keep needs --from OUTPUT")
    if args.tuned:
        read_tuned(user_path(args.tuned))  # before anything is written
    if args.origin:
        folders = _lane_folders(args.origin)
        cells.mkdir(parents=True, exist_ok=True)
        for lane in folders:
            _pack(lane, cells / f"{lane.name}{ENDING}", args.keep)
            if lane.name == ABLATED:
                _measure(lane, into / DISTANCES)
    if args.tuned:
        _copy(user_path(args.tuned), into)
    packs = sorted(cells.glob(f"*{ENDING}")) if cells.is_dir() else []
    if not packs:
        raise DataError(f"{cells} holds no pack of runs (*{ENDING}); give --from OUTPUT with runs")
    lanes = read_lanes(packs, plans)
    every = [run for lane in lanes for run in lane.runs]
    refuse_simulated(every)
    tuned = _sealed(into / TUNED)
    claims = _claims()
    papers = papers_of(every) | {
        name: paper_of(card_of(name), name) for name in sorted(
            {str(entry["trainer"]) for entry in tuned.get("entries", ())} & claims.keys())}
    paths = write_page(Sources(
        lanes, claims, papers, card_of, tuned, _sealed(into / MOVED), _trains(tuned),
        search_of(into / TUNED, tuned, papers) if tuned else Search(),
        _sealed(into / DISTANCES).get("lanes", {}), _sealed(into / AGAIN),
    ), into)
    complain(*(n for lane in lanes for n in lane.collected.notes()), prefix="note")
    say(f"page: {paths[0]} ({len(every)} runs, {sum(bool(lane.runs) for lane in lanes)} settings)")
    return 0


def _copy(tuned: Path, into: Path) -> None:
    """Copy ``tuned.json`` beside the page, and the record of its runs, packed.

    Raises:
        DataError: a file cannot be read or written.
    """
    into.mkdir(parents=True, exist_ok=True)
    data = packed_records(tuned.parent)
    files.write_bytes(into / TUNED, tuned.read_bytes())
    if data:
        files.write_bytes(into / PACKED, data)
        say(f"packed: {into / PACKED} ({len(data) / 1e6:.2f} MB)")
    else:
        complain(f"{tuned.parent} has no runs.jsonl, the record of the tuning's runs; its curves "
                 "and noise cannot be made again from the page's folder", prefix="note")


def _measure(lane: Path, path: Path) -> None:
    """Note how far each run's shared tensors are from their start; what was noted before stays."""
    old: dict[str, dict[str, Any]] = _sealed(path).get("lanes", {})
    new = {run.digest: told for run in collect([lane]).runs
           if (told := distance(run.path, run.digest))}
    if new or old:
        lanes = old | {lane.name: dict(sorted((old.get(lane.name, {}) | new).items()))}
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(path, seal_text({"lanes": lanes}))


def _trains(tuned: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what the entries of a tuning trained; nothing, with a note, where a method is gone."""
    try:
        return trains_of(tuned) if tuned else {}
    except FedvlmError as error:
        complain(f"{TUNED}: {error}; no run counts as tuned", prefix="note")
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(f"{TUNED} has no entries; make it again with fedvlm tune") from None
    return {}


def _lane_folders(word: str) -> list[Path]:
    """Return the folders of an output, a lane each.

    Raises:
        DataError: there are none.
    """
    origin = user_path(word)
    folders = sorted(path for path in origin.iterdir() if path.is_dir()) if origin.is_dir() else []
    if not folders:
        run_folders([word])  # names the nearest folder where there is none of this name
        raise DataError(f"--from {word}: has no folders of runs (one for each setting); packs are "
                        f"read from FOLDER/{CELLS}, without --from")
    return folders


def _pack(lane: Path, path: Path, keep: bool) -> None:
    """Pack a lane's finished runs; with ``keep`` also those that only the pack has.

    Raises:
        DataError: the pack is damaged, or has runs that the lane lacks and may not keep.
    """
    collected = collect([lane])
    complain(*collected.notes(), prefix="note")
    names = {run.path.relative_to(lane).as_posix(): run.path for run in collected.runs}
    if not names:
        return
    lost = sorted(run_names(path) - names.keys()) if path.is_file() else []
    if lost and not keep:
        raise DataError(
            f"{path} has {len(lost)} run(s) that {lane} lacks ({lost[0]}) and would lose them: "
            "finish the runs first, keep them (--keep), or move the pack away"
        )
    if lost:
        (old,) = folders_of(path)
        names |= {name: old / name for name in lost}
    number = pack_runs(names.items(), path)
    kept = f", {len(lost)} of them from the old pack" if lost else ""
    say(f"packed: {path} ({number} runs{kept}, {path.stat().st_size / 1e6:.2f} MB)")


def _claims() -> dict[str, Claim | None]:
    """Return every method's claim by its name in results.

    Raises:
        ConfigError: a card's sentence is none that can be tested.
    """
    out = {}
    for path in trainer_files().values():
        text = card(path)
        out[text.partition(":")[0]] = read_claim(fields(text).get("Claim", ""))
    return out


def _sealed(path: Path) -> dict[str, Any]:
    """Return a sealed JSON file; empty where there is none.

    Raises:
        DataError: it is damaged.
    """
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["seal"] != seal_of(record):
            raise ValueError("its checksum does not match")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged or was edited ({error}); make it again") from None
    return dict(record)


def packed_records(folder: Path) -> bytes:
    """Return the lines of a tuning's folder packed, as they are; the same lines, the same bytes.

    Empty where there are none.

    Raises:
        DataError: they cannot be read.
    """
    for name in (FILE, PACKED):
        path = folder / name
        if path.is_file():
            with files.explain_errors(path):
                data = path.read_bytes()
            return data if name == PACKED else lzma.compress(
                data, preset=9 | lzma.PRESET_EXTREME)
    return b""
