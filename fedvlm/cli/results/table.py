"""Mean and spread over seeds in md, csv, tex or html.

Of finished runs, or of the log.txt files that CoOp-style code leaves. Data sets of one protocol
share a table, which ends in their average; others get a table each.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from fedvlm.cli.results._folders import no_runs, run_folders
from fedvlm.console.parser import Parser, whole
from fedvlm.console.screen import complain, say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.report.collect import collect
from fedvlm.report.tables.facts import REFERENCES, Pair
from fedvlm.report.tables.logs import logs_table
from fedvlm.report.tables.render import FORMATS
from fedvlm.report.tables.table import Spec, Table, tables

EXAMPLES = (
    "fedvlm table output",
    "fedvlm table output --where shots=16 --reference zero-shot --out table.tex",
    "fedvlm table output --rows trainer --cols dataset shots --metric personal new  # wider",
    "fedvlm table --logs COOP_OUTPUT  # of another project's log.txt files",
)
ALSO = ("latex", "csv", "summary", "aggregate")
ENDINGS = {".md": "md", ".csv": "csv", ".tex": "tex", ".html": "html"}
FOR_RUNS = ("rows", "cols", "metric", "where", "exclude", "reference", "mixed")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("folders", nargs="*", metavar="OUTPUT", help="folders with runs, at any depth")
    add("--rows", nargs="+", metavar="KEY", help="protocol keys, config keys or metric (trainer)")
    add("--cols", nargs="+", metavar="KEY", help="the same for columns (dataset)")
    add("--metric", nargs="+", metavar="NAME", help="personal, global, zero_shot.personal, "
        "totals.bytes_up, trainable, rounds_to:70, ... (personal)")
    add("--format", type=str.lower, choices=list(FORMATS), default="", help="(by the ending of "
        "--out, else md)")
    add("--where", nargs="+", action="extend", metavar="KEY=VALUE", help="only these runs; several "
        "of one key are alternatives")
    add("--exclude", nargs="+", action="extend", metavar="KEY=VALUE", help="not these runs")
    add("--reference", nargs="*", choices=list(REFERENCES), metavar="NAME",
        help=f"also the runs' reference numbers: {', '.join(REFERENCES)} (both)")
    add("--mixed", nargs="*", metavar="KEY", help="one table although runs differ in these keys "
        "(any); the caption says in which they do")
    add("--ci", action="store_true", help="the 95 %% t-interval instead of the standard deviation")
    add("--digits", type=whole(0, 6), default=1, metavar="N", help="decimals of percentages (1)")
    add("--standalone", action="store_true", help="a whole document (tex, html)")
    add("--out", default="", metavar="FILE", help="write here instead of the screen")
    add("--logs", default="", metavar="FOLDER", help="read Dassl's log.txt files below FOLDER "
        "instead of runs")
    add("--test-log", action="store_true", help="with --logs: '=> result' ends a log too")


def main(args: Namespace) -> int:
    """Print a table, or write it to a file.

    Raises:
        ConfigError: unknown flags, keys or metrics; runs that cannot share a table.
        DataError: no finished run, or no log, to be read.
    """
    form, out = _format(args), Path(args.out).expanduser()
    if args.out and not out.parent.is_dir():
        raise ConfigError(f"--out {args.out}: there is no folder {out.parent}; make it first")
    command = shlex.join(["fedvlm", "table", *args.words])
    drawn = _from_logs(args, command) if args.logs else _from_runs(args, command)
    text = FORMATS[form](drawn, args.standalone)
    if args.out:
        files.write_text(out, text)
        say(f"table: {args.out}")
    else:
        say(*text.rstrip("\n").splitlines())
    if form == "csv":
        for table in drawn:
            complain(table.caption, *table.notes, prefix="note")
    return 0


def _from_runs(args: Namespace, command: str) -> list[Table]:
    if not args.folders:
        raise ConfigError(f"table wants a folder with runs: {EXAMPLES[0]}")
    if args.test_log:
        raise ConfigError("--test-log is for --logs FOLDER")
    spec = _spec(args)
    folders = run_folders(args.folders)
    collected = collect(folders)
    if not collected.runs:
        raise DataError(f"{no_runs(folders, collected)}; --logs reads CoOp-style logs")
    return tables(collected, spec, command)


def _from_logs(args: Namespace, command: str) -> list[Table]:
    of_runs = [args.spelling[dest] for dest in FOR_RUNS if dest in args.spelling]
    if of_runs or args.folders:
        word = (of_runs or args.folders)[0]
        raise ConfigError(f"--logs reads one folder of logs, which name no protocol: drop {word}")
    return [logs_table(
        Path(args.logs).expanduser(), test_log=args.test_log, ci=args.ci, digits=args.digits,
        command=command,
    )]


def _spec(args: Namespace) -> Spec:
    axes = {"rows": args.rows, "cols": args.cols, "metrics": args.metric}
    return Spec(
        **{k: tuple(dict.fromkeys(words)) for k, words in axes.items() if words},
        where=_pairs(args.where or [], "--where"), exclude=_pairs(args.exclude or [], "--exclude"),
        reference=tuple(REFERENCES) if args.reference == [] else tuple(args.reference or ()),
        mixed=None if args.mixed is None else tuple(args.mixed), ci=args.ci, digits=args.digits,
    )


def _pairs(words: Sequence[str], flag: str) -> tuple[Pair, ...]:
    for word in words:
        if not word.partition("=")[0] or "=" not in word:
            raise ConfigError(f"{flag} {word}: wants KEY=VALUE, for example {flag} shots=16")
    return tuple((word.partition("=")[0], word.partition("=")[2]) for word in words)


def _format(args: Namespace) -> str:
    form = args.format or ENDINGS.get(Path(args.out).suffix.lower(), "md")
    if args.standalone and form not in ("tex", "html"):
        raise ConfigError(f"--standalone is for tex and html, not for {form}; drop it")
    return str(form)
