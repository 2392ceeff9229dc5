"""Methods x data sets x seeds, resumable cell by cell.

Whether a cell is done is read from its run folder, so a sweep stopped anywhere (kill -9 too) goes
on with the same command, and table, show and the rest find the runs where they always are. All
flags of fedvlm run that are not below, and KEY VALUE pairs, hold for every cell.
"""

from __future__ import annotations

import math
import os
import shlex
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvlm.cli.nearest import nearest_path
from fedvlm.config.read import lookup
from fedvlm.console.parser import Parser, whole
from fedvlm.console.rows import table_lines
from fedvlm.console.screen import complain, progress, say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, fold
from fedvlm.core.signals import saying
from fedvlm.core.threads import usual_threads
from fedvlm.job.flags import add_flags, pairs
from fedvlm.runs import lock
from fedvlm.sweep.plan import PlanReader, SweepPlan, name_by_content, read_plan, select_entries
from fedvlm.sweep.slurm import script

if TYPE_CHECKING:
    from fedvlm.sweep.run import Sweep

EXAMPLES = (
    "fedvlm sweep configs/sweeps/demo.yaml --jobs 2",
    "fedvlm sweep --trainers FedAvg FedTV --datasets eurosat pets --seeds 1 2 3 --root DATA/",
    "fedvlm sweep configs/sweeps/demo.yaml --dry-run  # what is to do, and how long it takes",
    "fedvlm sweep configs/sweeps/demo.yaml --slurm array.sh --slurm-time 2:00:00",
)
ALSO = ("matrix", "grid", "search", "plan", "experiments")
_INSTEAD = {  # flag of a run -> what a sweep has instead
    "trainer": "--trainers", "dataset": "--datasets", "dataset_config_file": "--datasets",
    "trainer_config_file": "a plan's trainer-config-file", "demo": "--datasets shapes",
    "print_config": "fedvlm config", "version": "fedvlm --version",
}


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    many: dict[str, Any] = {"nargs": "+", "type": listed, "default": []}
    add("opts", nargs="*", metavar="PLAN.yaml", help="a plan; without one, --trainers and "
        "--datasets; and KEY VALUE pairs for every cell")
    add("--trainers", **many, metavar="NAME", help="methods; with a plan: only these of it")
    add("--datasets", **many, metavar="NAME", help="data sets; with a plan: only these of it")
    add("--seeds", **many, metavar="N", help="both seeds of each run (default 1)")
    add("--shots", **many, metavar="N", help="images per class")
    add("--name", default="", help="name of the sweep's folder below OUTPUT_DIR/sweeps")
    add_worker_flags(parser)
    add("--retry-failed", action="store_true", help="run failed cells again")
    add("--only", type=_cells, metavar="I-J", help="only the cells of these numbers (see --list)")
    add("--list", action="store_true", help="every cell with its number and state")
    add("--dry-run", action="store_true", help="what is to do, with estimates of time and memory; "
        "writes nothing")
    add("--slurm", default="", metavar="FILE", help="write an array script for SLURM instead")
    add("--slurm-chunk", type=whole(1), default=1, metavar="N", help="cells per array task (1)")
    add("--slurm-time", default="", metavar="H:MM:SS", help="time limit of a task")
    add("--slurm-mem", default="", metavar="SIZE", help="memory of a task, such as 8G")
    add("--slurm-cpus", type=whole(1), default=1, metavar="N", help="processors of a task (1)")
    add("--slurm-option", **many, metavar="OPT", help="further #SBATCH options, such as gres=gpu:1")
    add_flags(parser, shown=False)
    parser.checks.append(_read)


def add_worker_flags(parser: Parser) -> None:
    """Add what ``run_sweep`` reads: workers, their threads and devices, a cell's time."""
    add = parser.add_argument
    add("--jobs", type=whole(1), default=1, metavar="N", help="worker processes (default 1)")
    add("--threads", type=whole(1), metavar="N", help="threads of each worker (default "
        "OMP_NUM_THREADS, else cores/jobs, 1 for the tiny backbone)")
    add("--devices", nargs="+", type=listed, default=[], metavar="D",
        help="one device per worker in turn, such as cuda:0")
    add("--cell-timeout", type=whole(1), default=0, metavar="SECONDS", help="kill a cell that "
        "takes longer; it counts as failed (default: never)")


def listed(word: str) -> list[str]:
    """Return the parts of a word: ``a,b`` is ``a b``."""
    return [part for part in word.split(",") if part]


def flatten(args: Namespace, dest: str) -> None:
    """Make one list of the words of a flag of type ``listed``."""
    setattr(args, dest, [part for parts in getattr(args, dest) for part in parts])


def _cells(word: str) -> range:
    """Return the cell numbers of ``7`` or ``4-7``.

    Raises:
        ArgumentTypeError: it is neither.
    """
    first, dash, last = word.partition("-")
    parts = [first, last] if dash else [first]
    if not all(p.isascii() and p.isdigit() for p in parts) or int(parts[-1]) < int(first):
        raise ArgumentTypeError(f"wants a cell's number or a range such as 4-7, got '{word}'")
    return range(int(first), int(parts[-1]) + 1)


def _read(args: Namespace) -> list[str]:
    """Find the plan's file and the settings of every run; return the mistakes.

    Leaves ``file`` (a path or None) and ``settings`` in the namespace.
    """
    mistakes, args.file = [], None
    for dest in ("trainers", "datasets", "seeds", "shots", "devices", "slurm_option"):
        flatten(args, dest)
    if args.opts and args.opts[0].lower().endswith((".yaml", ".yml")):
        word = args.opts.pop(0)
        args.file = lookup(word, "sweeps")
        if args.file is None:
            mistakes.append(f"no plan '{word}'{nearest_path(Path(word))}; "
                            "try configs/sweeps/demo.yaml")
    mistakes += [f"a sweep has no {args.spelling[dest]}: use {instead}"
                 for dest, instead in _INSTEAD.items() if dest in args.spelling]
    alone = pairs(args)
    reader = PlanReader("words")
    opts = {} if alone else dict(zip(args.opts[::2], args.opts[1::2], strict=True))
    args.settings = args.flags | reader.settings(opts, "words")
    return mistakes + alone + [m.removeprefix("words: words: ") for m in reader.mistakes]


def plan_of(args: Namespace) -> SweepPlan:
    """Return the plan: the file's, cut and overridden by the words, or the words' alone.

    Raises:
        ConfigError: mistakes of the file or the words, one line each.
    """
    reader = PlanReader("words")
    seeds = [int(w) if w.isdigit() else w for w in args.seeds]
    shots = [int(w) if w.lstrip("-").isdigit() else w for w in args.shots]
    if args.file is not None:
        plan = read_plan(args.file)
        if args.trainers:
            plan = replace(plan, trainers=select_entries(plan.trainers, args.trainers, "trainers"))
        if args.datasets:
            plan = replace(plan, datasets=select_entries(plan.datasets, args.datasets, "datasets"))
        if seeds:
            plan = replace(plan, seeds=reader.numbers(seeds, "--seeds"))
        if shots:
            plan = replace(plan, shots=reader.numbers(shots, "--shots", least=-1))
        if reader.mistakes:
            raise ConfigError("\n".join(m.removeprefix("words: ") for m in reader.mistakes))
        plan = replace(plan, override=args.settings)
        return replace(plan, name=args.name) if args.name else plan
    lacking = [f"--{name}" for name in ("trainers", "datasets") if not getattr(args, name)]
    if lacking:
        raise ConfigError(
            f"give a plan such as configs/sweeps/demo.yaml, or {' and '.join(lacking)} "
            "(fedvlm sweep --help lists the flags)"
        )
    plan = reader.plan(
        {"trainers": args.trainers, "datasets": args.datasets, "seeds": seeds or [1]}
        | ({"shots": shots} if shots else {}), "words",
    )
    plan = replace(plan, override=args.settings)
    return replace(plan, name=args.name) if args.name else name_by_content(plan)


def main(args: Namespace) -> int:
    """Run the verb; 0: every cell asked for is done, 1: some failed.

    Raises:
        FedvlmError: mistakes of the words or the plan, all of them, before anything runs.
        KeyboardInterrupt: whole rounds are saved.
    """
    plan = plan_of(args)
    progress("loading PyTorch")
    from fedvlm.sweep.cells import cells_of  # start-up: PyTorch, 2 s
    from fedvlm.sweep.run import Sweep  # start-up: PyTorch

    progress("checking every cell")
    cells = cells_of(plan)
    progress.clear()
    if args.only is not None and args.only[-1] >= len(cells):
        word = args.words[args.words.index(args.spelling["only"]) + 1]
        raise ConfigError(f"--only {word}: the cells are 0 to {len(cells) - 1}")
    if args.slurm:
        return _slurm(args, plan, len(cells))
    sweep = Sweep(plan, cells, args.jobs, args.only)
    if args.list:
        say(*table_lines(sweep.rows()))
        return 0
    if args.dry_run:
        say(*sweep.dry_lines(retry=args.retry_failed))
        return 0
    return run_sweep(args, sweep, retry=args.retry_failed)


def run_sweep(
    args: Namespace, sweep: Sweep, *, retry: bool, until: float = math.inf
) -> int:
    """Run a sweep with the command's workers; return 0, or 1 where cells have failed.

    Args:
        args: ``threads``, ``devices``, ``cell_timeout``.
        retry: whether failed cells are run again.
        until: see ``Sweep.run``.

    Raises:
        ConfigError: another process runs it.
        KeyboardInterrupt: whole rounds are saved.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = args.threads or usual_threads(
        {c.config["MODEL.BACKBONE.NAME"] for c in sweep.cells}, os.environ, cores or 1, sweep.jobs
    )
    sweep.journal.prepare(sweep.plan.content())
    held = None if sweep.only is not None else _alone(sweep.journal.folder)
    try:
        return sweep.run(
            threads, tuple(args.devices), retry=retry, timeout=args.cell_timeout, until=until
        )
    except KeyboardInterrupt as stop:
        raise saying(
            stop, "finished cells and whole rounds are saved; the same command goes on"
        ) from None
    finally:
        if held is not None:
            held.release()


def _alone(folder: Path) -> lock.RunLock:
    try:
        return lock.acquire(folder)
    except ConfigError as error:  # a tag makes other cells, not another sweep
        raise ConfigError(
            str(error).replace("this run its own --tag", "this sweep its own --name")
        ) from None


def _slurm(args: Namespace, plan: SweepPlan, cells: int) -> int:
    """Write the array script; its tasks get the same words without the script's own."""
    path = Path(args.slurm).expanduser()
    text = script(
        plan.name, _words_of_a_task(args.words), cells, chunk=args.slurm_chunk,
        time=args.slurm_time, memory=args.slurm_mem, cpus=args.slurm_cpus,
        options=args.slurm_option,
    )
    files.write_text(path, text)
    say(f"wrote {path}; submit it with: {shlex.join(['sbatch', str(path)])}")
    if args.only is not None:
        complain("--only is not part of the script: its tasks cover all cells", prefix="note")
    return 0


def _words_of_a_task(words: Sequence[str]) -> list[str]:
    """Return the words without the flags of the script, of the pool and of the cells."""
    rest, left = [], list(words)
    while left:
        word = left.pop(0)
        name = fold(word.partition("=")[0]) if word.startswith("--") else ""
        if not (name.startswith("slurm") or name in ("jobs", "only")):
            rest.append(word)
        elif "=" not in word:
            del left[:1]
            while name == "slurmoption" and left and not left[0].startswith("--"):
                del left[:1]
    return rest
