"""``fedvlm table``: finished runs, or CoOp-style logs, as a table in Markdown, CSV, LaTeX, HTML."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from fedvlm.cli.parser import VerbParser
from fedvlm.console.screen import complain, say
from fedvlm.core import files as atomic
from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.report.collect import Collected, collect
from fedvlm.report.tables.facts import REFERENCES, Pair
from fedvlm.report.tables.logs import logs_table
from fedvlm.report.tables.render import FORMATS
from fedvlm.report.tables.table import Spec, Table, tables

USAGE = "fedvlm table OUTPUT ... [--rows trainer] [--cols dataset] [--metric personal] [flags]"
ENDINGS = {".md": "md", ".csv": "csv", ".tex": "tex", ".html": "html"}
FOR_RUNS = ("rows", "cols", "metric", "where", "exclude", "reference", "mixed")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = VerbParser("table", USAGE, "fedvlm table --help lists the flags")
    add = made.add_argument
    add("folders", nargs="*", metavar="OUTPUT", help="folders with runs, at any depth")
    add("--rows", nargs="+", metavar="KEY", help="protocol keys, config keys or metric (trainer)")
    add("--cols", nargs="+", metavar="KEY", help="the same for columns (dataset)")
    add("--metric", nargs="+", metavar="NAME", help="personal, global, zero_shot.personal, "
        "totals.bytes_up, trainable, rounds_to:70, ... (personal)")
    add("--format", default="", help=f"{', '.join(FORMATS)} (by the ending of --out, else md)")
    add("--where", nargs="+", action="extend", metavar="KEY=VALUE", help="only these runs; several "
        "of one key are alternatives")
    add("--exclude", nargs="+", action="extend", metavar="KEY=VALUE", help="not these runs")
    add("--reference", nargs="*", metavar="NAME",
        help=f"also the runs' reference numbers: {', '.join(REFERENCES)} (both)")
    add("--mixed", nargs="*", metavar="KEY", help="let runs differ in these keys (any); the "
        "caption says in which they do")
    add("--ci", action="store_true", help="the 95 %% t-interval instead of the standard deviation")
    add("--digits", type=int, default=1, help="decimals of percentages (1)")
    add("--standalone", action="store_true", help="a whole document (tex, html)")
    add("--out", default="", metavar="FILE", help="write here instead of the screen")
    add("--logs", default="", metavar="FOLDER", help="read Dassl's log.txt files below FOLDER "
        "instead of runs")
    add("--test-log", action="store_true", help="with --logs: '=> result' ends a log too")
    add("-h", "--help", action="store_true", help="this page")
    return made


def main(argv: Sequence[str]) -> int:
    """Print a table, or write it to a file.

    Raises:
        ConfigError: unknown flags, keys or metrics; runs that cannot share a table.
        DataError: no finished run, or no log, to be read.
    """
    asked = parser().parse_args(list(argv))
    if asked.help:
        say(*parser().format_help().rstrip().splitlines())
        return 0
    form, out = _format(asked), Path(asked.out).expanduser()
    if asked.out and not out.parent.is_dir():
        raise ConfigError(f"--out {asked.out}: there is no folder {out.parent}; make it first")
    command = shlex.join(["fedvlm", "table", *argv])
    made = _from_logs(asked, command) if asked.logs else _from_runs(asked, command)
    text = FORMATS[form](made, asked.standalone)
    if asked.out:
        atomic.write_text(out, text)
        say(f"table: {asked.out}")
    else:
        say(*text.rstrip("\n").splitlines())
    if form == "csv":
        for table in made:
            complain(table.caption, *table.notes, prefix="note")
    return 0


def _from_runs(asked: argparse.Namespace, command: str) -> list[Table]:
    if not asked.folders:
        raise ConfigError(f"table wants a folder with runs: {USAGE}")
    if asked.test_log:
        raise ConfigError("--test-log is for --logs FOLDER")
    spec = _spec(asked)
    found = collect([Path(word).expanduser() for word in asked.folders])
    if not found.runs:
        raise DataError(_nothing(asked.folders, found))
    return tables(found, spec, command)


def _from_logs(asked: argparse.Namespace, command: str) -> list[Table]:
    given = [f"--{name}" for name in FOR_RUNS if getattr(asked, name) is not None]
    if given or asked.folders:
        word = given[0] if given else asked.folders[0]
        raise ConfigError(f"--logs reads one folder of logs, which name no protocol: drop {word}")
    return [logs_table(
        Path(asked.logs).expanduser(), test_log=asked.test_log, ci=asked.ci, digits=asked.digits,
        command=command,
    )]


def _spec(asked: argparse.Namespace) -> Spec:
    chosen = {"rows": asked.rows, "cols": asked.cols, "metrics": asked.metric}
    references = list(REFERENCES) if asked.reference == [] else asked.reference or []
    for name in references:
        if name not in REFERENCES:
            raise ConfigError(f"--reference {name}: no such reference"
                              f"{did_you_mean(name, REFERENCES)} (known: {', '.join(REFERENCES)})")
    return Spec(
        **{k: tuple(dict.fromkeys(words)) for k, words in chosen.items() if words},
        where=_pairs(asked.where or [], "--where"),
        exclude=_pairs(asked.exclude or [], "--exclude"), reference=tuple(references),
        mixed=None if asked.mixed is None else tuple(asked.mixed), ci=asked.ci,
        digits=asked.digits,
    )


def _pairs(words: Sequence[str], flag: str) -> tuple[Pair, ...]:
    for word in words:
        if not word.partition("=")[0] or "=" not in word:
            raise ConfigError(f"{flag} {word}: wants KEY=VALUE, for example {flag} shots=16")
    return tuple((word.partition("=")[0], word.partition("=")[2]) for word in words)


def _format(asked: argparse.Namespace) -> str:
    if not 0 <= asked.digits <= 6:
        raise ConfigError(f"--digits {asked.digits}: must be from 0 to 6")
    form = asked.format.lower() or ENDINGS.get(Path(asked.out).suffix.lower(), "md")
    if form not in FORMATS:
        raise ConfigError(f"--format {asked.format}: no such format{did_you_mean(form, FORMATS)} "
                          f"(known: {', '.join(FORMATS)})")
    if asked.standalone and form not in ("tex", "html"):
        raise ConfigError(f"--standalone is for tex and html, not for {form}; drop it")
    return form


def _nothing(folders: Sequence[str], found: Collected) -> str:
    """Say what lies there instead of finished runs."""
    there = [f"{len(found.unfinished)} unfinished, first {found.unfinished[0]}"] \
        if found.unfinished else []
    there += found.problems[:2]
    seen = f" ({'; '.join(there)})" if there else ""
    return f"no finished run below {', '.join(folders)}{seen}; --logs reads CoOp-style logs"
