"""Methods x data sets x seeds, resumable cell by cell.

Whether a cell is done is read from its run folder, so a sweep stopped anywhere (kill -9 too) goes
on with the same command, and table, show and the rest find the runs where they always are. All
flags of fedvlm run that are not below, and KEY VALUE pairs, hold for every cell.
"""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvlm.cli.nearest import nearest_path
from fedvlm.config.read import lookup
from fedvlm.console.parser import Parser, whole
from fedvlm.console.rows import table_lines
from fedvlm.console.screen import progress, say
from fedvlm.core.errors import ConfigError
from fedvlm.core.signals import saying
from fedvlm.core.threads import usual_threads
from fedvlm.job.flags import add_flags, pairs
from fedvlm.runs import lock
from fedvlm.sweep.plan import PlanReader, SweepPlan, name_by_content, read_plan, select_entries

if TYPE_CHECKING:
    from fedvlm.sweep.run import Sweep

EXAMPLES = (
    "fedvlm sweep configs/sweeps/demo.yaml --jobs 2",
    "fedvlm sweep --trainers FedAvg FedTV --datasets eurosat pets --seeds 1 2 3 --root DATA/",
    "fedvlm sweep configs/sweeps/demo.yaml --dry-run  # what is to do, and how long it takes",
    "fedvlm sweep configs/sweeps/demo.yaml --launch slurm --slurm-time 2:00:00 --slurm-mem 8G",
    "fedvlm sweep configs/sweeps/demo.yaml --launch local  # the same without a cluster",
)
ALSO = ("matrix", "grid", "search", "plan", "experiments")
_INSTEAD = {  # flag of a run -> what a sweep has instead
    "trainer": "--trainers", "dataset": "--datasets", "dataset_config_file": "--datasets",
    "trainer_config_file": "a plan's trainer-config-file", "demo": "--datasets shapes",
    "print_config": "fedvlm config", "version": "fedvlm --version",
}

_JOBS = {  # flag of the pool -> what jobs have instead
    "jobs": "use --slurm-jobs", "devices": "use --slurm-option gres=gpu:1, and --device cuda",
}


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    many: dict[str, Any] = {"nargs": "+", "type": _listed, "default": []}
    add("opts", nargs="*", metavar="PLAN.yaml", help="a plan; without one, --trainers and "
        "--datasets; and KEY VALUE pairs for every cell")
    add("--trainers", **many, metavar="NAME", help="methods; with a plan: only these of it")
    add("--datasets", **many, metavar="NAME", help="data sets; with a plan: only these of it")
    add("--seeds", **many, metavar="N", help="both seeds of each run (default 1)")
    add("--shots", **many, metavar="N", help="images per class")
    add("--name", default="", help="name of the sweep's folder below OUTPUT_DIR/sweeps")
    add("--jobs", type=whole(1), default=1, metavar="N", help="worker processes (default 1)")
    add("--threads", type=whole(1), metavar="N", help="threads of each worker (default "
        "OMP_NUM_THREADS, else cores/jobs, 1 for the tiny backbone)")
    add("--devices", **many, metavar="D", help="one device per worker in turn, such as cuda:0")
    add("--cell-timeout", type=whole(1), default=0, metavar="SECONDS", help="kill a cell that "
        "takes longer; it counts as failed (default: never)")
    add("--retry-failed", action="store_true", help="run failed cells again")
    add("--only", type=_cells, metavar="I-J", help="only the cells of these numbers (see --list)")
    add("--list", action="store_true", help="every cell with its number and state")
    add("--dry-run", action="store_true", help="what is to do, with estimates of time and memory; "
        "writes nothing")
    add("--launch", default="", choices=("slurm", "local"), help="run cells as jobs of SLURM "
        "(pip install 'fedvlm[slurm]'), or as if, on this machine, and watch them")
    add("--slurm-chunk", type=whole(1), default=1, metavar="N", help="cells per job (1)")
    add("--slurm-time", default="", metavar="H:MM:SS", help="time limit of a job (1:00:00); at its "
        "end it saves and is queued again")
    add("--slurm-requeues", type=whole(0), default=3, metavar="N", help="how often that (3); "
        "after a preemption always")
    add("--slurm-mem", default="", metavar="SIZE", help="memory of a job, such as 8G")
    add("--slurm-cpus", type=whole(1), default=1, metavar="N", help="processors of a job (1)")
    add("--slurm-jobs", type=whole(1), default=0, metavar="N", help="jobs that run at once "
        "(SLURM's limits; 1 with --launch local)")
    add("--slurm-option", **many, metavar="OPT", help="further options of sbatch, such as "
        "gres=gpu:1 partition=long")
    add_flags(parser, shown=False)
    parser.checks.append(_read)


def _listed(word: str) -> list[str]:
    """Return the parts of a word: ``a,b`` is ``a b``."""
    return [part for part in word.split(",") if part]


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
        setattr(args, dest, [part for parts in getattr(args, dest) for part in parts])
    if args.opts and args.opts[0].lower().endswith((".yaml", ".yml")):
        word = args.opts.pop(0)
        args.file = lookup(word, "sweeps")
        if args.file is None:
            mistakes.append(f"no plan '{word}'{nearest_path(Path(word))}; "
                            "try configs/sweeps/demo.yaml")
    mistakes += [f"a sweep has no {args.spelling[dest]}: use {instead}"
                 for dest, instead in _INSTEAD.items() if dest in args.spelling]
    given = args.spelling
    if args.launch:
        mistakes += [f"{given[d]} does not go with --launch: {i}" for d, i in _JOBS.items()
                     if d in given]
    else:
        mistakes += [f"{word} goes with --launch slurm" for dest, word in given.items()
                     if dest.startswith("slurm_")]
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
    sweep = Sweep(plan, cells, args.jobs, args.only)
    if args.list:
        say(*table_lines(sweep.rows()))
        return 0
    if args.dry_run:
        say(*sweep.dry_lines(retry=args.retry_failed))
        return 0
    return _launch(args, sweep) if args.launch else _run(args, sweep)


def _launch(args: Namespace, sweep: Sweep) -> int:
    """Run the cells as jobs of a batch system.

    Raises:
        ConfigError: no such system here, resources that it would not understand.
    """
    from fedvlm.sweep.launch import Launch  # start-up: PyTorch
    from fedvlm.sweep.queue import open_queue, read_resources  # start-up: PyTorch

    resources = read_resources(
        time=args.slurm_time, memory=args.slurm_mem, cpus=args.slurm_cpus,
        options=args.slurm_option, at_once=args.slurm_jobs, requeues=args.slurm_requeues,
    )
    folder = sweep.journal.folder
    queue = open_queue(args.launch, folder.absolute() / "jobs", sweep.plan.name, resources)
    sweep.journal.prepare(sweep.plan.content())
    held = _alone(folder) if sweep.only is None else None
    try:
        return Launch(
            sweep, queue, resources, args.slurm_chunk, args.threads or 0, args.cell_timeout
        ).run(args.retry_failed)
    finally:
        if held is not None:
            held.release()


def _run(args: Namespace, sweep: Sweep) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = args.threads or usual_threads(
        {c.config["MODEL.BACKBONE.NAME"] for c in sweep.cells}, os.environ, cores or 1, sweep.jobs
    )
    sweep.journal.prepare(sweep.plan.content())
    held = None if sweep.only is not None else _alone(sweep.journal.folder)
    try:
        return sweep.run(
            threads, tuple(args.devices), retry=args.retry_failed, timeout=args.cell_timeout
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

