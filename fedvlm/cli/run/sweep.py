"""Run methods x data sets x seeds; resumes after any interruption.

A cell is one run. A sweep that was interrupted anywhere (also by kill -9) resumes with the same
command; finished cells are not run again. All other flags of fedvlm run and KEY VALUE pairs apply
to every cell.
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

from fedvlm.cli.run._plan import (
    MANY,
    alone,
    end_flags,
    plan_flags,
    plan_of,
    split_words,
    threads_for,
)
from fedvlm.console.parser import Parser, whole_number
from fedvlm.console.rows import table_lines
from fedvlm.console.screen import complain, progress, say
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import user_path
from fedvlm.core.signals import saying
from fedvlm.sweep.plan import with_axes
from fedvlm.sweep.tune.tuned import apply_tuned, read_tuned

if TYPE_CHECKING:
    from fedvlm.sweep.queue import Resources
    from fedvlm.sweep.run import Sweep

EXAMPLES = (
    "fedvlm sweep configs/sweeps/demo.yaml --jobs 2",
    "fedvlm sweep --trainers FedAvg FedTV --datasets eurosat pets --seeds 1 2 3 --root DATA/",
    "fedvlm sweep configs/sweeps/demo.yaml --dry-run  # show what would run and for how long",
    "fedvlm sweep configs/sweeps/demo.yaml --tuned output/tuning/tune/tuned.json  # tuned values",
    "fedvlm sweep configs/sweeps/demo.yaml --launch slurm --slurm-time 2:00:00 --slurm-mem 8G",
    "fedvlm sweep configs/sweeps/demo.yaml --launch local  # the same jobs without a cluster",
)
ALSO = ("matrix", "grid", "search", "plan", "experiments")

_JOBS = {  # flag of the pool -> what jobs have instead
    "jobs": "use --slurm-jobs", "devices": "use --slurm-option gres=gpu:1, and --device cuda",
}


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    plan_flags(parser)
    add("--retry-failed", action="store_true", help="run failed cells again")
    add("--only", type=_cells, metavar="I-J", help="only the cells with these numbers (see --list)")
    add("--list", action="store_true", help="list every cell with its number and state")
    add("--dry-run", action="store_true", help="show what would run, with estimated time and "
        "memory; writes nothing")
    add("--launch", default="", choices=("slurm", "local"), help="run cells as SLURM jobs "
        "(pip install 'fedvlm[slurm]') or as local jobs, and watch them")
    add("--slurm-chunk", type=whole_number(1), default=1, metavar="N", help="cells per job (1)")
    add("--slurm-time", default="", metavar="H:MM:SS", help="time limit of a job (1:00:00); a job "
        "that reaches it saves its state and is queued again")
    add("--slurm-requeues", type=whole_number(0), default=3, metavar="N", help="how often a job "
        "is queued again after its time limit (3); after a preemption always")
    add("--slurm-mem", default="", metavar="SIZE", help="memory of a job, such as 8G")
    add("--slurm-cpus", type=whole_number(1), default=1, metavar="N", help="processors of a job "
        "(1)")
    add("--slurm-jobs", type=whole_number(1), default=0, metavar="N", help="jobs that run at once "
        "(default: SLURM's limits; 1 with --launch local)")
    add("--slurm-option", **MANY, type=split_words, metavar="OPT", help="further sbatch options, "
        "such as gres=gpu:1 partition=long")
    add("--tuned", default="", metavar="FILE", help="tuned.json of fedvlm tune: use the tuned "
        "values of every method")
    add("--tuned-anywhere", action="store_true", help="use tuned values also on backbones "
        "that they were not tuned on (effect: docs/tuning.md)")
    end_flags(parser, grid=True)
    parser.checks.append(_together)


def _cells(word: str) -> range:
    """Return the cell numbers of ``7`` or ``4-7``."""
    first, dash, last = word.partition("-")
    parts = [first, last] if dash else [first]
    if not all(p.isascii() and p.isdigit() for p in parts) or int(parts[-1]) < int(first):
        raise ArgumentTypeError(f"expects a cell's number or a range such as 4-7, got '{word}'")
    return range(int(first), int(parts[-1]) + 1)


def _together(args: Namespace) -> list[str]:
    """Return what does not go together: flags of launching, flags of tuned values."""
    if args.tuned_anywhere and not args.tuned:
        return ["--tuned-anywhere needs --tuned FILE"]
    if args.launch:
        return [f"{args.spelling[dest]} cannot be combined with --launch: {instead}"
                for dest, instead in _JOBS.items() if dest in args.spelling]
    return [f"{word} needs --launch slurm" for dest, word in args.spelling.items()
            if dest.startswith("slurm_")]


def main(args: Namespace) -> int:
    """Run the verb; 0: every cell asked for is done, 1: some failed.

    Raises:
        FedvlmError: mistakes of the words or the plan, all of them, before anything runs.
        KeyboardInterrupt: whole rounds are saved.
    """
    plan = with_axes(plan_of(args))
    if args.tuned:
        plan, notes = apply_tuned(plan, read_tuned(user_path(args.tuned)), args.tuned_anywhere)
        complain(*notes, prefix="note")
    progress("loading PyTorch")
    from fedvlm.sweep.cells import cells_of, unread_axes  # start-up: PyTorch, 2 s
    from fedvlm.sweep.queue import read_resources  # start-up: PyTorch
    from fedvlm.sweep.run import Sweep  # start-up: PyTorch

    resources = read_resources(
        time=args.slurm_time, memory=args.slurm_mem, cpus=args.slurm_cpus,
        options=args.slurm_option, at_once=args.slurm_jobs, requeues=args.slurm_requeues,
    )
    progress("checking every cell")
    cells = cells_of(plan)
    progress.clear()
    complain(*unread_axes(plan, cells), prefix="note")
    if args.only is not None and args.only[-1] >= len(cells):
        word = args.words[args.words.index(args.spelling["only"]) + 1]
        raise ConfigError(f"--only {word}: the cells are 0 to {len(cells) - 1}")
    sweep = Sweep(plan, cells, args.jobs, args.only)
    if args.list:
        say(*table_lines(sweep.rows()))
        return 0
    if args.dry_run:
        say(*sweep.dry_lines(retry=args.retry_failed))
        return 0
    return _launch(args, sweep, resources) if args.launch else run_sweep(
        args, sweep, retry=args.retry_failed)


def _launch(args: Namespace, sweep: Sweep, resources: Resources) -> int:
    """Run the cells as jobs of a batch system.

    Raises:
        ConfigError: no such system here.
    """
    from fedvlm.sweep.jobs import QueuedJobs  # start-up: PyTorch
    from fedvlm.sweep.queue import open_queue  # start-up: PyTorch

    folder = sweep.journal.folder
    queue = open_queue(args.launch, folder.absolute() / "jobs", sweep.plan.name, resources)
    sweep.journal.prepare(sweep.plan.content())
    with alone(folder, sweep.only):
        return QueuedJobs(
            sweep, queue, resources, args.slurm_chunk, args.threads or 0, args.cell_timeout
        ).run(args.retry_failed)


def run_sweep(
    args: Namespace, sweep: Sweep, *, retry: bool, until: float = math.inf
) -> int:
    """Run a sweep with the command's workers; return 0, or 1 where cells have failed.

    Args:
        args: ``threads``, ``jobs``, ``devices``, ``cell_timeout``.
        retry: whether failed cells are run again.
        until: see ``Sweep.run``.

    Raises:
        ConfigError: another process runs it.
        KeyboardInterrupt: whole rounds are saved.
    """
    threads = threads_for(args, {c.config["MODEL.BACKBONE.NAME"] for c in sweep.cells})
    sweep.journal.prepare(sweep.plan.content())
    try:
        with alone(sweep.journal.folder, sweep.only):
            return sweep.run(
                threads, tuple(args.devices), retry=retry, timeout=args.cell_timeout, until=until
            )
    except KeyboardInterrupt as stop:
        raise saying(
            stop, "finished cells and rounds are saved; the same command resumes"
        ) from None


