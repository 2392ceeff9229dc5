"""What ``sweep`` and ``tune`` share: a plan from a file, cut and overridden by words."""

from __future__ import annotations

import contextlib
import os
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvlm.config.read import lookup
from fedvlm.console.nearest import nearest_path
from fedvlm.console.parser import Parser, number_words, whole_number
from fedvlm.core.errors import ConfigError
from fedvlm.core.threads import usual_threads
from fedvlm.job.flags import add_flags, pairs
from fedvlm.runs import lock
from fedvlm.sweep.plan import PlanReader, SweepPlan, name_by_content, read_plan, select_entries

INSTEAD = {  # flag of a run -> what a sweep has instead
    "trainer": "--trainers", "rule": "--trainers",
    "dataset": "--datasets", "dataset_config_file": "--datasets",
    "trainer_config_file": "trainer-config-file in the plan", "demo": "--datasets shapes",
    "print_config": "fedvlm config", "version": "fedvlm --version",
    "images": "--datasets FILE.yaml, which fedvlm data add FOLDER writes",
    "method": "fedvlm run", "no_train": "--dry-run",
    **dict.fromkeys(("eval_only", "model_dir", "load_epoch"), "fedvlm evaluate RUN"),
    "RESUME": "the same command, which goes on with what was stopped",
}
MANY: dict[str, Any] = {"nargs": "+", "default": []}


def split_words(word: str) -> list[str]:
    """Return the parts of a word: ``a,b`` is ``a b``."""
    return [part for part in word.split(",") if part]


def flatten(args: Namespace, dest: str) -> None:
    """Make one list of the words of a flag of type ``split_words``."""
    setattr(args, dest, [part for parts in getattr(args, dest, []) for part in parts])


def plan_flags(parser: Parser) -> None:
    """Add the words that make or cut a plan, and those of its workers."""
    add = parser.add_argument
    many = MANY | {"type": split_words}
    add("opts", nargs="*", metavar="PLAN.yaml", help="a plan file, or none with "
        "--trainers and --datasets; and KEY VALUE pairs for every cell")
    add("--trainers", **many, metavar="NAME", help="methods; with a plan: only these methods of "
                                                   "the plan")
    add("--datasets", **many, metavar="NAME", help="data sets; with a plan: only these data sets "
                                                   "of the plan")
    add("--seeds", **MANY, type=number_words, metavar="N",
        help="seeds, each used as model and data seed (default 1)")
    add("--shots", **many, metavar="N", help="images per class")
    add("--name", default="", help="name of the folder below OUTPUT_DIR")
    worker_flags(parser)


def worker_flags(parser: Parser) -> None:
    """Add what workers are: how many, their threads and devices, a cell's time."""
    add = parser.add_argument
    add("--jobs", type=whole_number(1), default=1, metavar="N", help="worker processes (default 1)")
    add("--threads", type=whole_number(1), metavar="N", help="threads of each worker (default "
        "OMP_NUM_THREADS, else cores/jobs, 1 for the tiny backbone)")
    add("--devices", **MANY, type=split_words, metavar="D", help="devices, assigned to the "
        "workers in turn, such as cuda:0")
    add("--cell-timeout", type=whole_number(1), default=0, metavar="SECONDS", help="kill a cell "
        "that takes longer; it counts as failed (default: never)")


def end_flags(parser: Parser, grid: bool = False) -> None:
    """Add all flags of a run, which hold for every cell; with ``grid`` several numbers of one."""
    add_flags(parser, shown=False, grid=grid)
    parser.checks.append(read_words)


def read_words(args: Namespace) -> list[str]:
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
    mistakes += [f"{args.spelling[dest]} does not work with a plan: use {instead}"
                 for dest, instead in INSTEAD.items() if dest in args.spelling]
    return mistakes + read_run_settings(args, PlanReader("words"))


def read_run_settings(args: Namespace, reader: PlanReader) -> list[str]:
    """Put the flags and KEY VALUE pairs into ``args.settings``; return the mistakes."""
    alone = pairs(args)
    opts = {} if alone else dict(zip(args.opts[::2], args.opts[1::2], strict=True))
    args.settings = args.flags | reader.settings(opts, "words")
    return alone + [m.removeprefix("words: ").removeprefix("words: ") for m in reader.mistakes]


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
            "(--help lists the flags)"
        )
    plan = reader.plan(
        {"trainers": args.trainers, "datasets": args.datasets, "seeds": seeds or [1]}
        | ({"shots": shots} if shots else {}), "words",
    )
    plan = replace(plan, override=args.settings)
    return replace(plan, name=args.name) if args.name else name_by_content(plan)


def threads_for(args: Namespace, backbones: Iterable[str]) -> int:
    """Return the threads of each worker: the user's number, or by backbone and cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(args.threads or usual_threads(set(backbones), os.environ, cores or 1, args.jobs))


@contextlib.contextmanager
def alone(folder: Path, part: object = None) -> Iterator[None]:
    """Hold the lock of a plan's folder; those who run only a ``part`` of it need none.

    Raises:
        ConfigError: a living process holds it.
    """
    if part is not None:
        yield
        return
    try:
        held = lock.acquire(folder)
    except ConfigError as error:  # a tag makes other cells, not another plan
        raise ConfigError(
            str(error).replace("choose another --tag", "choose another --name")
        ) from None
    try:
        yield
    finally:
        held.release()
