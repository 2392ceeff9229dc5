"""The record of ``bench methods`` as lines for a terminal and as a table for a page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evidence.bench.machine import Measurements
from fedvlm.config.families import ORDER
from fedvlm.console.rows import table_lines
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import write_text

FP32_LOSS = 1e-5
BEGIN, END = "<!-- table: bench methods -->", "<!-- end -->"
_MARKED = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
NO_WAY = "no other path"


def lines(record: Measurements) -> list[str]:
    """Return the report."""
    done = measured(record)
    notes = [
        "CPU ms per client-round (training and aggregation, without evaluation); bytes up and down "
        "per round; MiB that the rounds add at their peak",
        "by: what the fast side took, as counted: streams out of the cache instead of images "
        "through the tower, texts in packed sequences, clients stacked",
        f"loss: largest difference of the two sides, relative; ! is above {FP32_LOSS:g} "
        "(--fp64 tells whether that is rounding)",
    ]
    return [heading(record), *table_lines(done), *notes, *verdict(record), *_refusals(record)]


def heading(record: Measurements) -> str:
    """Return what was measured how, in one sentence."""
    s, load = record["setting"], record["load"]
    epochs = f", {s['epochs']} local epoch(s)" if s["epochs"] else ""
    return (
        f"methods on {s['backbone']}, {s['prec']}, built-in shapes, {s['clients']} clients, "
        f"{s['rounds']} rounds{epochs} after a warm-up, median of {s['repeats']} interleaved "
        f"pairs, {s['threads']} thread(s), CPU; load average {load['before']:.1f} to "
        f"{load['highest']:.1f} on {load['cores']} core(s)"
    )


def measured(record: Measurements) -> list[dict[str, object]]:
    """Return the rows of the table, by what is trained, then by name."""
    done = [r for r in record["methods"].values() if "refused" not in r]
    return [_row(r) for r in sorted(done, key=_order)]


def verdict(record: Measurements) -> list[str]:
    """Return who is slower than its plain path, and who has no other."""
    named = {n: r for n, r in record["methods"].items() if "refused" not in r}
    ratios = {n: r["ratio"] for n, r in named.items() if "ratio" in r}
    out = []
    if slow := [f"{n} ({named[n]['lowest']:.2f}-{named[n]['highest']:.2f})"
                for n, ratio in ratios.items() if ratio < 1]:
        out.append(f"slower than its plain path: {', '.join(slow)}")
    elif ratios:
        least = min(ratios, key=lambda n: ratios[n])
        out.append(f"none of {len(ratios)} is slower than its plain path; the least is {least}, "
                   f"{ratios[least]:.2f}")
    if alone := [n for n in named if n not in ratios]:
        out.append(f"{NO_WAY} than the plain one, so no ratio: {', '.join(alone)}")
    return out


def _refusals(record: Measurements) -> list[str]:
    """Return who was not measured, one line a reason."""
    reasons: dict[str, list[str]] = {}
    for name, row in record["methods"].items():
        if "refused" in row:
            reasons.setdefault(row["refused"], []).append(name)
    return [f"{', '.join(names)}: not measured: {reason}" for reason, names in reasons.items()]


def _order(record: Mapping[str, Any]) -> tuple[list[int], str, str]:
    return [ORDER.index(w) for w in record["families"]], record["trainer"].lower(), record["peft"]


def _row(record: Mapping[str, Any]) -> dict[str, object]:
    gap = record["loss_difference"]
    mark = " !" if gap is not None and gap > FP32_LOSS else ""
    there = "ratio" in record
    return {
        "method": record["trainer"], "trains": "+".join(record["families"]),
        "by": ", ".join(record["ways"]) or NO_WAY,
        "fast ms": f"{1000 * record['fast']['cpu']:.2f}",
        "plain ms": f"{1000 * record['plain']['cpu']:.2f}",
        "ratio": f"{record['ratio']:.1f}" if there else "-",
        "range": f"{record['lowest']:.1f}-{record['highest']:.1f}" if there else "-",
        "bytes": f"{record['bytes_per_round']:,.0f}",
        "fast MiB": f"{record['fast']['memory'] / 2**20:.1f}",
        "plain MiB": f"{record['plain']['memory'] / 2**20:.1f}",
        "loss": "-" if gap is None else f"{gap:.0e}{mark}" if gap else "0",
    }


def page(record: Measurements, command: str) -> str:
    """Return a Markdown table with what was measured how, when and where."""
    rows, cpu = measured(record), record["cpu"]
    cells = [list(rows[0]), ["---"] * len(rows[0]), *(list(map(str, r.values())) for r in rows)]
    head = (
        f"{record['date']}, {cpu['name']}, {cpu['cores']} core(s), torch {record['torch']}: "
        f"`{command}`; {heading(record)}. CPU ms per client-round; bytes up and down per round; "
        "MiB that the rounds add at their peak."
    )
    table = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    tail = " ".join(f"{line[0].upper()}{line[1:]}." for line in verdict(record))
    return f"{head}\n\n{table}\n\n{tail}"


def check_page(path: Path) -> None:
    """Refuse a page that the table has no place in; a new file is fine.

    Raises:
        ConfigError: a file that is there and has no markers.
    """
    if path.exists() and not _MARKED.search(path.read_text(encoding="utf-8")):
        raise ConfigError(
            f"--markdown {path}: the file is there and has no lines '{BEGIN}' and '{END}' to put "
            "the table between; add them, or name a new file"
        )


def write_page(path: Path, record: Measurements, command: str) -> None:
    """Put the table into a page: between its markers where the file is there, else it is the page.

    Raises:
        ConfigError: as ``check_page``.
        DataError: it cannot be written.
    """
    check_page(path)
    text = f"{BEGIN}\n{page(record, command)}\n{END}"
    if path.exists():
        write_text(path, _MARKED.sub(lambda _: text, path.read_text(encoding="utf-8"), count=1))
    else:
        write_text(path, f"{text}\n")
