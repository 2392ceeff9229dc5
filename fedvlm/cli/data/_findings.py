"""How the doctor's findings are shown: a table that fits the terminal, a line a message, JSON.

Where the output is no terminal, all columns are there and no line is broken.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO, cast

from fedvlm.console.rows import format_number, one_line, table_lines
from fedvlm.console.screen import progress, say, wants_live
from fedvlm.core.errors import DataError
from fedvlm.data.datum import PARTS
from fedvlm.data.doctor.checks import (
    ABSENT,
    BROKEN,
    BUILT_IN,
    PARTLY,
    PREPARED,
    READY,
    UNKNOWN,
    Checkup,
)

_STATES = (READY, PREPARED, BUILT_IN, BROKEN, PARTLY, UNKNOWN, ABSENT)
_DROPPED = ("published", "layout", "remarks")  # in this order, where they do not fit
_STYLES = {"ready": "green", "prepared": "green", "built in": "green", "broken": "bold red",
           "partly": "yellow", "unknown": "yellow", "absent": "dim"}  # fmt: skip
_GAP, _INDENT = 2, 4


def show_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Show rows of named cells; the cell ``state`` has a colour on a terminal."""
    plain = [{k: one_line(format_number(v)) for k, v in row.items()} for row in rows]
    if not wants_live(sys.stdout):
        say(*table_lines(plain))
    elif plain:
        _rich_table(plain, shutil.get_terminal_size().columns)


def show_lines(lines: Sequence[str]) -> None:
    """Show lines; on a terminal they are broken between words, with an indent."""
    texts = [one_line(line) for line in lines]
    if wants_live(sys.stdout):
        width = max(shutil.get_terminal_size().columns, 2 * _INDENT)
        texts = [
            part for line in texts
            for part in textwrap.wrap(line, width, subsequent_indent=" " * _INDENT,
                                      break_long_words=False, break_on_hyphens=False) or [""]
        ]
    say(*texts)


def fit_columns(rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """Return the columns that fit ``width``; what other lines show too goes first."""
    columns = list(dict.fromkeys(name for row in rows for name in row))

    def needs() -> int:
        cells = [[name, *(row.get(name, "-") for row in rows)] for name in columns]
        return sum(max(map(len, column)) + _GAP for column in cells)

    for name in _DROPPED:
        if needs() > width and name in columns:
            columns.remove(name)
    return columns


def _rich_table(rows: Sequence[Mapping[str, str]], width: int) -> None:
    from rich.console import Console  # start-up: rich, for a terminal only
    from rich.table import Table  # start-up: rich
    from rich.text import Text  # start-up: rich

    from fedvlm.console.live import QuietStream  # start-up: rich

    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold")
    columns = fit_columns(rows, width)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        style = _STYLES.get(row.get("state", ""), "")
        cells = [Text(row.get(name, "-"), style if name == "state" else "") for name in columns]
        table.add_row(*cells)
    progress.clear()
    quiet = cast(TextIO, QuietStream(sys.stdout))
    Console(file=quiet, width=width, highlight=False, force_terminal=True).print(table)


def findings_code(checks: Sequence[Checkup], named: bool) -> int:
    """Return 0 or 3.

    Args:
        named: the user asked for these sets, so that none may be absent.
    """
    states = {check.state for check in checks}
    fine = states <= {READY, PREPARED, BUILT_IN, UNKNOWN, *(() if named else (ABSENT,))}
    some_ready = named or bool(states & {READY, PREPARED})
    return 0 if fine and some_ready else DataError.exit_code


def json_record(
    checks: Sequence[Checkup], root: str, sample: int | None, code: int
) -> dict[str, Any]:
    """Return what ``--json`` writes; its keys are stable."""
    rows = []
    for check in checks:
        row = asdict(check)
        findings = row.pop("findings")
        row["problems"] = [_finding(f) for f in findings if f["broken"]]
        row["remarks"] = [_finding(f) for f in findings if not f["broken"]]
        rows.append(row)
    return {"root": root, "sample": sample, "exit_code": code, "sets": rows}


def _finding(finding: dict[str, Any]) -> dict[str, Any]:
    return {key: finding[key] for key in ("check", "count", "text")}


def show_checks(checks: Sequence[Checkup], root: str, sample: int | None) -> None:
    """Show one line per set: those that are there, the others, then every finding."""
    seen = [c for c in checks if c.state not in (ABSENT, BUILT_IN)]
    others = [c for c in checks if c.state in (ABSENT, BUILT_IN)]
    show_table([_row(check) for check in seen])
    if seen and others:
        say("")
    _show_absent(others, root)
    lines = []
    for check in checks:
        lines += [f"{check.name}: problem: {finding.text}" for finding in check.problems]
        if check.get and check.state == PARTLY:
            lines.append(f"{check.name}: get it: {check.get}")
        if check.get and check.state == UNKNOWN:
            lines.append(f"{check.name}: not a known set; to use it: {check.get}")
        lines += [f"{check.name}: note: {finding.text}" for finding in check.remarks]
    if lines:
        show_lines(["", *lines])
    counts = {state: sum(c.state == state for c in checks) for state in _STATES}
    counted = ", ".join(f"{n} {state}" for state, n in counts.items() if n) or "nothing to look at"
    closely = "" if not seen else "; all images were decoded" if sample is None else (
        f"; at most {sample} images per set were decoded; --full decodes all")
    show_lines(["", f"{root}: {counted}{closely}"])


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
    classes = "-" if check.classes is None else f"{check.classes} {check.unit}".strip()
    sized = any(n is not None for n in published.values())
    return {
        "set": check.name,
        "state": check.state,
        "layout": check.layout or "-",
        "classes": classes if same or not sizes else f"{classes} of {check.published_classes}",
        "train/val/test": "/".join(str(sizes[p]) for p in PARTS) if sizes else "-",
        "published": "/".join(str(published[p]) for p in PARTS) if sized else "-",
        "unreadable": f"{check.unreadable} of {check.looked}" if check.looked else "-",
        "leaks": str(check.leaks) if sizes else "-",
        "remarks": str(len(check.findings)),
    }
