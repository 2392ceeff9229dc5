"""Make a table of runs: mean and spread over seeds (text, md, csv, tex, html).

Of finished runs, or of the log.txt files that CoOp-style code leaves. Data sets of one protocol
share a table, which ends in their average; others get a table each.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedvlm.cli.results._pairs import print_pairs
from fedvlm.cli.results._papers import papers_by_name, papers_of
from fedvlm.console.parser import Parser, amount, whole_number
from fedvlm.console.screen import complain, progress, say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.report.collect import Collected, collect, no_runs, run_folders
from fedvlm.report.compare.text import PAIR_FORMATS
from fedvlm.report.tables.facts import KINDS, METRIC, REFERENCES, Pair, RunFacts
from fedvlm.report.tables.logs import logs_table
from fedvlm.report.tables.metrics import COLUMNS, known_metrics
from fedvlm.report.tables.papers import Paper, bibliography
from fedvlm.report.tables.render import FORMATS, notes_text
from fedvlm.report.tables.table import ReportTable, Spec, tables
from fedvlm.report.tables.tex import Style, tex

EXAMPLES = (
    "fedvlm table output",
    "fedvlm table output --versus FedAvg  # paired differences with intervals, wins and losses",
    "fedvlm table output --columns gain steps bytes --order best",
    "fedvlm table output --names paper --order best --label tab:main --out main.tex  # and .bib",
    "fedvlm table output --where shots=16 --reference zero-shot --out table.md",
    "fedvlm table output --rows trainer --cols dataset shots --metric personal new  # wider",
    "fedvlm table RUN_A RUN_B --paired  # two runs: settings, clients, first round that differs",
    "fedvlm table --logs COOP_OUTPUT  # log.txt files of another project",
    "fedvlm table --hyperparameters output/tuning/tune/tuned.json --out appendix.tex",
)
ALSO = ("latex", "csv", "summary", "aggregate")
ENDINGS = {".md": "md", ".csv": "csv", ".tex": "tex", ".html": "html"}
FOR_RUNS = (
    "rows", "cols", "metric", "where", "exclude", "reference", "mixed", "columns", "versus",
    "order", "names",
)
NONE = "none"
USUAL = ("gain", "steps")  # columns beside a table of methods and data sets, where runs have them


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("folders", nargs="*", metavar="OUTPUT", help="folders with runs, at any depth")
    add("--rows", nargs="+", metavar="KEY", help="what the rows are: protocol keys, config keys "
                                                 "or metric (trainer)")
    add("--cols", nargs="+", metavar="KEY", help="what the columns are (dataset)")
    add("--metric", nargs="+", metavar="NAME", help="personal, global, zero_shot.personal, "
        "totals.bytes_up, trainable, rounds_to:70, ... (personal)")
    add("--format", type=str.lower, choices=[*FORMATS, "json"], default="", help="(default: "
        "the suffix of --out, else md; text on the screen); json only with --paired")
    add("--where", nargs="+", action="extend", metavar="KEY=VALUE", help="only these runs; several "
        "values of one key are alternatives")
    add("--exclude", nargs="+", action="extend", metavar="KEY=VALUE", help="not these runs")
    add("--reference", nargs="*", choices=[*REFERENCES, NONE], metavar="NAME",
        help=f"rows of the baselines: {', '.join(REFERENCES)} (no NAME: all), or "
        f"{NONE} ({' '.join(KINDS)})")
    add("--columns", nargs="+", metavar="NAME", help="additional columns for one metric, "
        f"means over the data sets: {', '.join(COLUMNS)}, any value of --metric, or {NONE} "
        f"({' '.join(USUAL)})")
    add("--versus", default="", metavar="METHOD", help="paired differences to METHOD with 95 %% "
        "intervals, and a table of them per data set")
    add("--paired", action="store_true", help="compare two runs: settings that differ, "
        "paired differences B - A over clients and images, first round that differs")
    add("--over-seeds", action="store_true", help="--paired with two folders of one finished run "
        "per seed: pairs by seed and data seed, intervals over seeds")
    add("--order", nargs="+", default=["name"], metavar="WORD", help="order of the rows: name, "
        "best, or methods that come first (name)")
    add("--names", choices=("run", "paper"), default="run", help="paper: methods and data sets as "
        "papers spell them, methods in groups, citations in LaTeX (default: run)")
    add("--label", default="", metavar="LABEL", help="\\label of the LaTeX table (tab:METRIC)")
    add("--width", type=amount("inches", 1, 30), default=5.5, metavar="INCHES",
        help="text width of the LaTeX "
        "document (5.5, NeurIPS)")
    add("--mixed", nargs="*", metavar="KEY", help="put runs into one table although they differ "
        "in these keys (default: any key); the caption names the differences")
    add("--ci", action="store_true", help="95 %% t-interval instead of the standard deviation")
    add("--digits", type=whole_number(0, 6), default=1, metavar="N", help="decimals of "
        "percentages (1)")
    add("--standalone", action="store_true", help="a whole document (tex, html)")
    add("--out", default="", metavar="FILE", help="write here instead of the screen")
    add("--logs", default="", metavar="FOLDER", help="read Dassl's log.txt files below FOLDER "
        "instead of runs")
    add("--hyperparameters", default="", metavar="FILE", help="table of a tuned.json of fedvlm "
        "tune: the values of every method, and what was searched")
    add("--test-log", action="store_true", help="with --logs: '=> result' also ends a log")


def main(args: Namespace) -> int:
    """Print a table, or write it to a file; beside LaTeX and CSV go its notes and its citations.

    Raises:
        ConfigError: unknown flags, keys or metrics; runs that cannot share a table.
        DataError: no finished run, or no log, to be read.
    """
    if args.paired or args.over_seeds:
        return _paired(args)
    form, out = _format(args), user_path(args.out)
    if args.out and not out.parent.is_dir():
        raise ConfigError(f"--out {args.out}: folder {out.parent} does not exist; create it first")
    command = shlex.join(["fedvlm", "table", *args.words])
    drawn, papers = _drawn(args, command)
    if form == "tex":
        style = Style(args.label, papers, args.width, out.stem if args.out else "")
        text = tex(drawn, args.standalone, style)
    else:
        text = FORMATS[form](drawn, args.standalone)
    if args.out:
        files.write_text(out, text)
        say(f"table: {args.out}", *_beside(form, out, drawn, papers))
    else:
        say(*text.rstrip("\n").splitlines())
    if form == "csv":
        for table in drawn:
            complain(table.caption, *table.notes, prefix="note")
    return 0


def _paired(args: Namespace) -> int:
    """Print the comparison of two runs, or of two groups of them."""
    others = {"folders", "paired", "over_seeds", "format"}
    strange = [word for dest, word in args.spelling.items() if dest not in others]
    if strange:
        raise ConfigError(f"{strange[0]} cannot be combined with --paired, which shows all "
                          "numbers of two runs; drop it")
    form = args.format or "text"
    if form not in PAIR_FORMATS:
        raise ConfigError(f"--paired has the formats {', '.join(PAIR_FORMATS)}, not {form}")
    return print_pairs("table --paired", args.folders, args.over_seeds, form)


def _beside(
    form: str, out: Path, drawn: Sequence[ReportTable], papers: Mapping[str, Paper]
) -> list[str]:
    """Write what LaTeX and CSV have no place for beside them; return what to say of it."""
    lines = []
    if form in ("tex", "csv"):
        files.write_text(out.with_suffix(".notes.txt"), notes_text(drawn))
        lines.append(f"notes: {out.with_suffix('.notes.txt')}")
    cited = {name for table in drawn for name in table.methods}
    text = bibliography([paper for name, paper in papers.items() if name in cited])
    if form == "tex" and text:
        files.write_text(out.with_suffix(".bib"), text)
        lines.append(f"citations: {out.with_suffix('.bib')}")
    return lines


def _drawn(args: Namespace, command: str) -> tuple[list[ReportTable], dict[str, Paper]]:
    if args.hyperparameters:
        return _from_tuning(args, command)
    return _from_logs(args, command) if args.logs else _from_runs(args, command)


def _from_tuning(args: Namespace, command: str) -> tuple[list[ReportTable], dict[str, Paper]]:
    strange = [args.spelling[d] for d in (*FOR_RUNS, "logs", "test_log")
               if d in args.spelling and d != "names"]
    if strange or args.folders:
        raise ConfigError("--hyperparameters reads only a tuned.json: drop "
                          f"{(strange or args.folders)[0]}")
    progress("loading PyTorch")
    from fedvlm.sweep.tune.appendix import hyperparameters  # start-up: PyTorch, 2 s
    from fedvlm.sweep.tune.tuned import read_tuned  # start-up: PyTorch

    progress.clear()
    path = user_path(args.hyperparameters)
    papers = papers_by_name(str(entry["trainer"]) for entry in read_tuned(path)["entries"]) \
        if args.names == "paper" else {}
    return hyperparameters(path, command, papers), papers


def _from_runs(args: Namespace, command: str) -> tuple[list[ReportTable], dict[str, Paper]]:
    if not args.folders:
        raise ConfigError(f"table needs a folder with runs: {EXAMPLES[0]}")
    if args.test_log:
        raise ConfigError("--test-log needs --logs FOLDER")
    folders = run_folders(args.folders)
    collected = collect(folders)
    if not collected.runs:
        raise DataError(f"{no_runs(folders, collected)}; --logs reads CoOp-style logs")
    papers = papers_of(collected.runs) if args.names == "paper" else {}
    return tables(collected, _spec(args, collected, papers), command), papers


def _from_logs(args: Namespace, command: str) -> tuple[list[ReportTable], dict[str, Paper]]:
    of_runs = [args.spelling[dest] for dest in FOR_RUNS if dest in args.spelling]
    if of_runs or args.folders:
        word = (of_runs or args.folders)[0]
        raise ConfigError("--logs reads one folder of logs, which do not record a protocol: "
                          f"drop {word}")
    return [logs_table(
        user_path(args.logs), test_log=args.test_log, ci=args.ci, digits=args.digits,
        command=command,
    )], {}


def _spec(args: Namespace, collected: Collected, papers: Mapping[str, Paper]) -> Spec:
    rows, cols, metrics = (
        tuple(dict.fromkeys(words)) if words else usual for words, usual in
        ((args.rows, Spec.rows), (args.cols, Spec.cols), (args.metric, Spec.metrics))
    )
    beside = "trainer" in rows and METRIC not in (*rows, *cols)
    return Spec(
        rows, cols, metrics, where=_pairs(args.where or [], "--where"),
        exclude=_pairs(args.exclude or [], "--exclude"),
        reference=_references(args, "trainer" in (*rows, *cols)),
        mixed=None if args.mixed is None else tuple(args.mixed), ci=args.ci, digits=args.digits,
        columns=_columns(args, beside, metrics, collected), versus=args.versus,
        order=tuple(args.order), papers=papers, names=args.names == "paper",
        symbols=args.names == "paper",
    )


def _references(args: Namespace, methods: bool) -> tuple[str, ...]:
    """Return the references asked for; without a word all kinds that stand below the methods."""
    if args.reference is None:
        return tuple(KINDS) if methods else ()
    if NONE in args.reference:
        return ()
    return tuple(args.reference) or REFERENCES


def _columns(
    args: Namespace, beside: bool, metrics: Sequence[str], collected: Collected
) -> tuple[str, ...]:
    """Return the columns beside the metric; the usual ones where runs have their numbers.

    The gain is one of personal accuracy, and beside other metrics only if it is asked for.
    """
    if args.columns is not None:
        return () if args.columns == [NONE] else tuple(args.columns)
    if not beside:
        return ()
    known = known_metrics([RunFacts(run) for run in collected.runs])
    return tuple(word for word in USUAL if COLUMNS[word] in known
                 and (word != "gain" or all(name.startswith("personal") for name in metrics)))


def _pairs(words: Sequence[str], flag: str) -> tuple[Pair, ...]:
    for word in words:
        if not word.partition("=")[0] or "=" not in word:
            raise ConfigError(f"{flag} {word}: expected KEY=VALUE, for example {flag} shots=16")
    return tuple((word.partition("=")[0], word.partition("=")[2]) for word in words)


def _format(args: Namespace) -> str:
    ending = Path(args.out).suffix.lower()
    if not args.format and ending not in ("", ".txt", *ENDINGS):
        raise ConfigError(f"--out {args.out}: no table ends in {ending}; use "
                          f"{', '.join(ENDINGS)}, or say what to write with --format")
    form = args.format or (ENDINGS.get(ending, "md") if args.out else "text")
    if form not in FORMATS:
        raise ConfigError("--format json needs --paired; use --format csv for a table of many runs")
    if args.standalone and form not in ("tex", "html"):
        raise ConfigError(f"--standalone works with tex and html, not with {form}; drop it")
    return str(form)
