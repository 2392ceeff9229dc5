"""``doctor``: is the data there, is it whole, and if not, what is wrong and how is it got.

How the doctor's findings are shown: a table that fits the terminal, then one line a sentence.

Where the output is no terminal, all columns are there and no line is broken.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO, cast

from yacs.config import CfgNode

from fedvlm.cli.parser import VerbParser
from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.config.read import find_config
from fedvlm.console.rows import number, one_line, table_lines
from fedvlm.console.screen import progress, say, wants_live
from fedvlm.core.errors import ConfigError, DataError, did_you_mean, fold
from fedvlm.data.catalog import CATALOG, dataset_info
from fedvlm.data.datasets import DATASET_REGISTRY
from fedvlm.data.datum import PARTS
from fedvlm.data.doctor import examine
from fedvlm.data.doctor_checks import (
    ABSENT,
    BROKEN,
    BUILT_IN,
    PARTLY,
    PREPARED,
    READY,
    Checkup,
    Look,
)
from fedvlm.data.locate import find_root

_DROPPED = ("published", "layout", "remarks")  # in this order, where they do not fit
_STYLES = {"ready": "green", "prepared": "green", "built in": "green", "broken": "bold red",
           "partly": "yellow", "absent": "dim"}  # fmt: skip
_GAP, _INDENT = 2, 4


def show_table(rows: Sequence[Mapping[str, object]], stream: TextIO | None = None) -> None:
    """Show rows of named cells; the cell ``state`` has a colour on a terminal."""
    out = sys.stdout if stream is None else stream
    plain = [{k: one_line(number(v)) for k, v in row.items()} for row in rows]
    if not wants_live(out):
        say(*table_lines(plain), stream=stream)
    elif plain:
        _rich_table(plain, out, shutil.get_terminal_size().columns)


def show_lines(lines: Sequence[str], stream: TextIO | None = None) -> None:
    """Show sentences; on a terminal they are broken between words, with an indent."""
    out = sys.stdout if stream is None else stream
    shown = [one_line(line) for line in lines]
    if wants_live(out):
        width = max(shutil.get_terminal_size().columns, 2 * _INDENT)
        shown = [
            part for line in shown
            for part in textwrap.wrap(line, width, subsequent_indent=" " * _INDENT,
                                      break_long_words=False, break_on_hyphens=False) or [""]
        ]
    say(*shown, stream=stream)


def fitting(rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """Return the columns that fit ``width``; what can be read elsewhere goes first."""
    columns = list(dict.fromkeys(name for row in rows for name in row))

    def needs() -> int:
        cells = [[name, *(row.get(name, "-") for row in rows)] for name in columns]
        return sum(max(map(len, column)) + _GAP for column in cells)

    for name in _DROPPED:
        if needs() > width and name in columns:
            columns.remove(name)
    return columns


def _rich_table(rows: Sequence[Mapping[str, str]], out: TextIO, width: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fedvlm.console.live import QuietStream

    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold")
    columns = fitting(rows, width)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        style = _STYLES.get(row.get("state", ""), "")
        cells = [Text(row.get(name, "-"), style if name == "state" else "") for name in columns]
        table.add_row(*cells)
    progress.clear()
    quiet = cast(TextIO, QuietStream(out))
    Console(file=quiet, width=width, highlight=False, force_terminal=True).print(table)


_SAMPLE = 64
_FLAGS = ("--root", "--dataset-config-file", "--full", "--sample", "--json", "--cache-dir")
_STATES = (READY, PREPARED, BUILT_IN, BROKEN, PARTLY, ABSENT)
USAGE = (
    "fedvlm doctor --root DATA/ [NAME ...] [--dataset-config-file FILE] [--full | --sample N] "
    "[--json] [--cache-dir CACHE_DIR]: what of each set is there, and all that is wrong with it",
    f"  decodes {_SAMPLE} images of each set; --sample N other numbers, --full all of them (then "
    "the bytes of all are compared too); what was read is kept for the next time",
    "  states: ready, prepared (a split of `data prepare`), built in, broken, partly, absent",
    "  exit code: 0 all is well (sets that nobody named may be absent, one set must be ready), "
    "3 something is broken or partly there, or a named set is absent, 2 wrong usage",
)


def main(argv: Sequence[str]) -> int:
    """Look at the known sets, or at those that are named; return the exit code.

    Raises:
        ConfigError: unknown set or flag.
        DataError: the root is not a folder.
    """
    if any(word in ("-h", "--help", "help") for word in argv):
        say(*USAGE)
        return 0
    args = _parse(argv)
    look = Look(None if args.full else args.sample, progress)
    root = find_root(args.root)
    named, configs = _asked(args)
    checks = []
    try:
        for at, cfg in enumerate(configs, 1):
            progress(f"{cfg.DATASET.NAME} ({at} of {len(configs)})")
            checks.append(examine(cfg, look))
    finally:
        progress.clear()
    code = exit_code(checks, named)
    if args.json:
        say(json.dumps(record(checks, str(root), look, code), indent=1))
    else:
        _show(checks, str(root), look)
    return code


def exit_code(checks: Sequence[Checkup], named: bool) -> int:
    """Return 0 or 3.

    Args:
        named: the user asked for these sets, so that none may be absent.
    """
    states = {check.state for check in checks}
    fine = states <= {READY, PREPARED, BUILT_IN, *(() if named else (ABSENT,))}
    some_ready = named or bool(states & {READY, PREPARED})
    return 0 if fine and some_ready else DataError.exit_code


def record(checks: Sequence[Checkup], root: str, look: Look, code: int) -> dict[str, Any]:
    """Return what ``--json`` writes; its keys are stable."""
    rows = []
    for check in checks:
        row = asdict(check)
        findings = row.pop("findings")
        row["problems"] = [_finding(f) for f in findings if f["broken"]]
        row["remarks"] = [_finding(f) for f in findings if not f["broken"]]
        rows.append(row)
    return {"root": root, "sample": look.sample, "exit_code": code, "sets": rows}


def _finding(found: dict[str, Any]) -> dict[str, Any]:
    return {key: found[key] for key in ("check", "count", "text")}


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    made = VerbParser("doctor", "", "fedvlm doctor --help says how")
    made.add_argument("names", nargs="*")
    made.add_argument("--root", default="")
    made.add_argument("--cache-dir", default="")
    made.add_argument("--dataset-config-file", action="append", default=[])
    made.add_argument("--full", action="store_true")
    made.add_argument("--json", action="store_true")
    made.add_argument("--sample", type=int)
    words = [w.replace("_", "-") if w.startswith("--") and "=" not in w else w for w in argv]
    args, rest = made.parse_known_intermixed_args(words)
    if rest:
        flag = rest[0].partition("=")[0]
        raise ConfigError(f"doctor: unknown word '{flag}'{did_you_mean(flag, _FLAGS)} "
                          f"(flags: {', '.join(_FLAGS)})")
    if args.full and args.sample is not None:
        raise ConfigError("doctor: give --full or --sample N, not both")
    args.sample = _SAMPLE if args.sample is None else args.sample
    if args.sample < 0:
        raise ConfigError(f"doctor: --sample {args.sample} is below 0; give a number of images")
    if not args.root.strip():
        raise ConfigError("doctor: --root is missing: give the folder that holds the data sets")
    return args


def _asked(args: argparse.Namespace) -> tuple[bool, list[CfgNode]]:
    """Return whether the user named sets, and the config of each set to look at.

    Raises:
        ConfigError: an unknown name, or a config file that is wrong.
    """
    names = [_known(word) for word in args.names]
    named = bool(names or args.dataset_config_file)
    if not named:
        names = [*CATALOG, *(n for n in DATASET_REGISTRY.registered_names() if n not in CATALOG)]
    flags = {"DATASET.ROOT": args.root} | ({"CACHE_DIR": args.cache_dir} if args.cache_dir else {})
    configs = [
        build_config(None, None, flags | {"DATASET.NAME": name}, [], default_schema())[0]
        for name in dict.fromkeys(names)
    ]
    for given in args.dataset_config_file:
        path = find_config(given, "datasets")
        configs.append(build_config(path, None, flags, [], default_schema())[0])
    return named, configs


def _known(word: str) -> str:
    info = dataset_info(word)
    if info is not None:
        return info.name
    own = {fold(name): name for name in DATASET_REGISTRY.registered_names()}
    if fold(word) in own:
        return own[fold(word)]
    names = [*CATALOG, *(a for row in CATALOG.values() for a in row.aliases), *own.values()]
    raise ConfigError(f"doctor: unknown set '{word}'{did_you_mean(word, names)} (known: "
                      f"{', '.join(CATALOG)}; own data: --dataset-config-file FILE)")


def _show(checks: Sequence[Checkup], root: str, look: Look) -> None:
    """Show one line per set: those that are there, the others, then every sentence."""
    seen = [c for c in checks if c.state not in (ABSENT, BUILT_IN)]
    others = [c for c in checks if c.state in (ABSENT, BUILT_IN)]
    show_table([_row(check) for check in seen])
    if seen and others:
        say("")
    _show_absent(others, root)
    lines = []
    for check in checks:
        lines += [f"{check.name}: problem: {found.text}" for found in check.problems]
        if check.get and check.state == PARTLY:
            lines.append(f"{check.name}: get it: {check.get}")
        lines += [f"{check.name}: note: {found.text}" for found in check.remarks]
    if lines:
        show_lines(["", *lines])
    counts = {state: sum(c.state == state for c in checks) for state in _STATES}
    told = ", ".join(f"{n} {state}" for state, n in counts.items() if n) or "nothing to look at"
    closely = "" if not seen else "; all images were decoded" if look.sample is None else (
        f"; at most {look.sample} images of a set were decoded, --full decodes all")
    show_lines(["", f"{root}: {told}{closely}"])


def _show_absent(checks: Sequence[Checkup], root: str) -> None:
    """Show how each set is got; the pages, which are long and few, below."""
    pages = list(dict.fromkeys(check.page for check in checks if check.page))
    rows = [
        {"set": c.name, "state": c.state,
         "how to get it": f"by hand, page ({pages.index(c.page) + 1})" if c.page else c.get}
        for c in checks
    ]
    show_table(rows)
    lines = [f"({n}) {page}" for n, page in enumerate(pages, 1)]
    if any(check.get.startswith("fedvlm data download") for check in checks):
        lines.append(f"downloads: add --root {root}")
    show_lines(lines)


def _row(check: Checkup) -> dict[str, object]:
    sizes, published = check.sizes, check.published_sizes
    same = check.published_classes in (None, check.classes)
    classes = "-" if check.classes is None else str(check.classes)
    known = any(n is not None for n in published.values())
    return {
        "set": check.name,
        "state": check.state,
        "layout": check.layout,
        "classes": classes if same or not sizes else f"{classes} of {check.published_classes}",
        "train/val/test": "/".join(str(sizes[p]) for p in PARTS) if sizes else "-",
        "published": "/".join(str(published[p]) for p in PARTS) if known else "-",
        "unreadable": f"{check.unreadable} of {check.looked}" if check.looked else "-",
        "leaks": str(check.leaks) if sizes else "-",
        "remarks": str(len(check.findings)),
    }
