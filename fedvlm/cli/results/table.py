"""Mean and spread over seeds as text, md, csv, tex or html.

Of finished runs, or of the log.txt files that CoOp-style code leaves. Data sets of one protocol
share a table, which ends in their average; others get a table each.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedvlm.cli.results._folders import no_runs, papers_of, run_folders
from fedvlm.cli.results._pairs import print_pairs
from fedvlm.console.parser import Parser, amount, whole_number
from fedvlm.console.screen import complain, progress, say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.federation.cards import card_of
from fedvlm.report.collect import Collected, collect
from fedvlm.report.compare.text import PAIR_FORMATS
from fedvlm.report.tables.facts import KINDS, METRIC, REFERENCES, Pair, RunFacts
from fedvlm.report.tables.logs import logs_table
from fedvlm.report.tables.metrics import COLUMNS, known_metrics
from fedvlm.report.tables.papers import Paper, bibliography, paper_of
from fedvlm.report.tables.render import FORMATS, notes_text
from fedvlm.report.tables.table import ReportTable, Spec, tables
from fedvlm.report.tables.tex import Style, tex
from fedvlm.runs.finished import FinishedRun

EXAMPLES = (
    "fedvlm table output",
    "fedvlm table output --versus FedAvg  # paired differences with intervals, wins and losses",
    "fedvlm table output --columns gain steps bytes --order best",
    "fedvlm table output --names paper --order best --label tab:main --out main.tex  # and .bib",
    "fedvlm table output --where shots=16 --reference zero-shot --out table.md",
    "fedvlm table output --rows trainer --cols dataset shots --metric personal new  # wider",
    "fedvlm table RUN_A RUN_B --paired  # two runs: settings, clients, where they part",
    "fedvlm table --logs COOP_OUTPUT  # of another project's log.txt files",
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
    add("--rows", nargs="+", metavar="KEY", help="protocol keys, config keys or metric (trainer)")
    add("--cols", nargs="+", metavar="KEY", help="the same for columns (dataset)")
    add("--metric", nargs="+", metavar="NAME", help="personal, global, zero_shot.personal, "
        "totals.bytes_up, trainable, rounds_to:70, ... (personal)")
    add("--format", type=str.lower, choices=[*FORMATS, "json"], default="", help="(by the "
        "ending of --out, md if it has none of these; text on the screen); json is for --paired")
    add("--where", nargs="+", action="extend", metavar="KEY=VALUE", help="only these runs; several "
        "of one key are alternatives")
    add("--exclude", nargs="+", action="extend", metavar="KEY=VALUE", help="not these runs")
    add("--reference", nargs="*", choices=[*REFERENCES, NONE], metavar="NAME",
        help=f"rows of the runs' references: {', '.join(REFERENCES)} (without a NAME all), or "
        f"{NONE} ({' '.join(KINDS)})")
    add("--columns", nargs="+", metavar="NAME", help=f"beside one metric, means over the data "
        f"sets: {', '.join(COLUMNS)}, whatever --metric takes, or {NONE} ({' '.join(USUAL)})")
    add("--versus", default="", metavar="METHOD", help="columns of paired differences to METHOD "
        "with their 95 %% interval, and a table of them per data set")
    add("--paired", action="store_true", help="of two runs: what differs in their settings, "
        "paired differences B - A of clients and images, the first round at which they part")
    add("--over-seeds", action="store_true", help="--paired, of two folders with one finished run "
        "per seed: pairs by seed and data seed, intervals over seeds")
    add("--order", nargs="+", default=["name"], metavar="WORD", help="of the rows: name, best, or "
        "methods that come first (name)")
    add("--names", choices=("run", "paper"), default="run", help="paper: methods and data sets as "
        "papers spell them, methods in groups, in LaTeX cited (run)")
    add("--label", default="", metavar="LABEL", help="LaTeX's \\label (tab:METRIC)")
    add("--width", type=amount("inches", 1, 30), default=5.5, metavar="INCHES",
        help="LaTeX's width of the text "
        "(5.5, NeurIPS)")
    add("--mixed", nargs="*", metavar="KEY", help="one table although runs differ in these keys "
        "(any); the caption says in which they do")
    add("--ci", action="store_true", help="the 95 %% t-interval instead of the standard deviation")
    add("--digits", type=whole_number(0, 6), default=1, metavar="N", help="decimals of "
        "percentages (1)")
    add("--standalone", action="store_true", help="a whole document (tex, html)")
    add("--out", default="", metavar="FILE", help="write here instead of the screen")
    add("--logs", default="", metavar="FOLDER", help="read Dassl's log.txt files below FOLDER "
        "instead of runs")
    add("--hyperparameters", default="", metavar="FILE", help="of a tuned.json of fedvlm tune: "
        "what every method runs with, and what was searched; instead of runs")
    add("--test-log", action="store_true", help="with --logs: '=> result' ends a log too")


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
        raise ConfigError(f"--out {args.out}: there is no folder {out.parent}; make it first")
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
        raise ConfigError(f"{strange[0]} does not go with --paired, which shows all numbers that "
                          "two runs have; drop it")
    form = args.format or "text"
    if form not in PAIR_FORMATS:
        raise ConfigError(f"--paired is printed as {', '.join(PAIR_FORMATS)}, not as {form}")
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


def _papers(args: Namespace, runs: Sequence[FinishedRun]) -> dict[str, Paper]:
    """Return what the cards say of the runs' methods, by name and title; else nothing."""
    if args.names != "paper":
        return {}
    return papers_of(runs)


def _drawn(args: Namespace, command: str) -> tuple[list[ReportTable], dict[str, Paper]]:
    if args.hyperparameters:
        return _from_tuning(args, command)
    return _from_logs(args, command) if args.logs else _from_runs(args, command)


def _from_tuning(args: Namespace, command: str) -> tuple[list[ReportTable], dict[str, Paper]]:
    strange = [args.spelling[d] for d in (*FOR_RUNS, "logs", "test_log")
               if d in args.spelling and d != "names"]
    if strange or args.folders:
        raise ConfigError("--hyperparameters reads a tuned.json alone: drop "
                          f"{(strange or args.folders)[0]}")
    progress("loading PyTorch")
    from fedvlm.sweep.tune.appendix import hyperparameters  # start-up: PyTorch, 2 s
    from fedvlm.sweep.tune.tuned import read_tuned  # start-up: PyTorch

    progress.clear()
    path = user_path(args.hyperparameters)
    names = {str(entry["trainer"]) for entry in read_tuned(path)["entries"]}
    papers = {name: paper_of(card_of(name), name) for name in sorted(names)} \
        if args.names == "paper" else {}
    return hyperparameters(path, command, papers), papers


def _from_runs(args: Namespace, command: str) -> tuple[list[ReportTable], dict[str, Paper]]:
    if not args.folders:
        raise ConfigError(f"table wants a folder with runs: {EXAMPLES[0]}")
    if args.test_log:
        raise ConfigError("--test-log is for --logs FOLDER")
    folders = run_folders(args.folders)
    collected = collect(folders)
    if not collected.runs:
        raise DataError(f"{no_runs(folders, collected)}; --logs reads CoOp-style logs")
    papers = _papers(args, collected.runs)
    return tables(collected, _spec(args, collected, papers), command), papers


def _from_logs(args: Namespace, command: str) -> tuple[list[ReportTable], dict[str, Paper]]:
    of_runs = [args.spelling[dest] for dest in FOR_RUNS if dest in args.spelling]
    if of_runs or args.folders:
        word = (of_runs or args.folders)[0]
        raise ConfigError(f"--logs reads one folder of logs, which name no protocol: drop {word}")
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
        columns=_columns(args, beside, collected), versus=args.versus, order=tuple(args.order),
        papers=papers, names=args.names == "paper",
    )


def _references(args: Namespace, methods: bool) -> tuple[str, ...]:
    """Return the references asked for; without a word all kinds that stand below the methods."""
    if args.reference is None:
        return tuple(KINDS) if methods else ()
    if NONE in args.reference:
        return ()
    return tuple(args.reference) or REFERENCES


def _columns(args: Namespace, beside: bool, collected: Collected) -> tuple[str, ...]:
    """Return the columns beside the metric; the usual ones where runs have their numbers."""
    if args.columns is not None:
        return () if args.columns == [NONE] else tuple(args.columns)
    if not beside:
        return ()
    known = known_metrics([RunFacts(run) for run in collected.runs])
    return tuple(word for word in USUAL if COLUMNS[word] in known)


def _pairs(words: Sequence[str], flag: str) -> tuple[Pair, ...]:
    for word in words:
        if not word.partition("=")[0] or "=" not in word:
            raise ConfigError(f"{flag} {word}: wants KEY=VALUE, for example {flag} shots=16")
    return tuple((word.partition("=")[0], word.partition("=")[2]) for word in words)


def _format(args: Namespace) -> str:
    form = args.format or (
        ENDINGS.get(Path(args.out).suffix.lower(), "md") if args.out else "text")
    if form not in FORMATS:
        raise ConfigError("--format json is for --paired; a table of many runs is a csv")
    if args.standalone and form not in ("tex", "html"):
        raise ConfigError(f"--standalone is for tex and html, not for {form}; drop it")
    return str(form)
