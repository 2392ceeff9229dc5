"""``fedvlm sweep``: a matrix of runs, resumable cell by cell.

``python -m fedvlm sweep configs/sweeps/demo.yaml --jobs 2``. Whether a cell is done is read from
its run folder, so a sweep stopped anywhere (``kill -9`` too) goes on with the same command, and
``table``, ``show`` and the rest find the runs where they always are.

The words of ``fedvlm sweep``: its own flags; all others are those of a run, for every cell.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedvlm.config.read import lookup
from fedvlm.console.rows import table_lines
from fedvlm.console.screen import complain, progress, say
from fedvlm.core import files as atomic
from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.job.flags import by_name, parse
from fedvlm.runs import lock as run_lock
from fedvlm.sweep.plan import Plan, PlanReader, Settings, named, pick, read_plan

SWITCH, WORD, MANY = "switch", "word", "many"
FLAGS: dict[str, tuple[str, str, str]] = {  # spelling -> (kind, value shown, help)
    "--trainers": (MANY, "NAME ...", "methods; with a plan: only these of it"),
    "--datasets": (MANY, "NAME ...", "data sets; with a plan: only these of it"),
    "--seeds": (MANY, "N ...", "both seeds of each run (default 1)"),
    "--shots": (MANY, "N ...", "images per class"),
    "--name": (WORD, "NAME", "name of the sweep's folder below OUTPUT_DIR/sweeps"),
    "--jobs": (WORD, "N", "worker processes (default 1)"),
    "--threads": (WORD, "N", "threads of each worker (default OMP_NUM_THREADS, else cores/jobs)"),
    "--devices": (MANY, "D ...", "one device per worker in turn, such as cuda:0 cuda:1"),
    "--retry-failed": (SWITCH, "", "run failed cells again"),
    "--only": (WORD, "I or I-J", "only the cells of these numbers (see --list)"),
    "--list": (SWITCH, "", "every cell with its number and state"),
    "--dry-run": (SWITCH, "", "what is to do, with estimates of time and memory; writes nothing"),
    "--slurm": (WORD, "FILE", "write an array script for SLURM instead of running"),
    "--slurm-chunk": (WORD, "N", "cells per array task (default 1)"),
    "--slurm-time": (WORD, "H:MM:SS", "time limit of a task"),
    "--slurm-mem": (WORD, "SIZE", "memory of a task, such as 8G"),
    "--slurm-cpus": (WORD, "N", "processors of a task (default 1)"),
    "--slurm-option": (MANY, "OPT ...", "further #SBATCH options, such as gres=gpu:1"),
    "--help": (SWITCH, "", "this page"),
}
_REFUSED = {
    "trainer": "--trainers", "dataset": "--datasets", "dataset_config_file": "--datasets",
    "trainer_config_file": "a plan's trainer-config-file", "demo": "--datasets shapes",
    "print_config": "fedvlm config", "version": "fedvlm --version",
}


@dataclass
class Asked:
    """What the words ask for."""

    file: Path | None = None
    own: dict[str, Any] = field(default_factory=dict)
    rest: Settings = field(default_factory=dict)
    debug: bool = False

    def number(self, flag: str, default: int) -> int:
        """Return a whole number of at least 1.

        Raises:
            ConfigError: it is none.
        """
        word = self.own.get(flag)
        if word is None:
            return default
        if not (word.isascii() and word.isdigit() and int(word) >= 1):
            raise ConfigError(f"{flag} wants a whole number from 1 on, got '{word}'")
        return int(word)

    def only(self) -> range | None:
        """Return the cell numbers of ``--only``: ``7`` or ``4-7``; None without the flag."""
        word = self.own.get("--only")
        if word is None:
            return None
        first, dash, last = word.partition("-")
        parts = [first, last] if dash else [first]
        if not all(p.isascii() and p.isdigit() for p in parts) or int(parts[-1]) < int(first):
            raise ConfigError(f"--only wants a cell's number or a range such as 4-7, got '{word}'")
        return range(int(first), int(parts[-1]) + 1)


def read_words(words: Sequence[str]) -> Asked:
    """Sort the words into the plan's file, the sweep's flags, and the flags of every run.

    Raises:
        ConfigError: all mistakes, one line each.
    """
    own = {fold(name): name for name in FLAGS}
    known = by_name()
    rest: list[str] = []
    mistakes: list[str] = []
    asked, at = Asked(), 0
    while at < len(words):
        name, equals, value = words[at].partition("=")
        spelling = own.get(fold(name)) if name.startswith("--") else None
        at += 1
        following = []
        while at < len(words) and not words[at].startswith("--"):
            following.append(words[at])
            at += 1
        if spelling is not None:
            rest += _take(asked, spelling, [value] if equals else [], following, mistakes)
        elif name.startswith("--") and len(name) > 2 and fold(name) not in known:
            near = did_you_mean(name, [*FLAGS, *(n for f in known.values() for n in f.names)])
            mistakes.append(f"unknown flag '{name}'{near or ' (fedvlm sweep --help lists all)'}")
        else:
            rest += [words[at - len(following) - 1], *following]
    if rest and rest[0].lower().endswith((".yaml", ".yml")):
        asked.file = lookup(rest[0], "sweeps")
        if asked.file is None:
            mistakes.append(f"no plan '{rest[0]}'; try configs/sweeps/demo.yaml")
        rest = rest[1:]
    mistakes += _of_runs(asked, rest)
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return asked


def _take(
    asked: Asked, name: str, given: list[str], following: list[str], mistakes: list[str]
) -> list[str]:
    """Store a flag of the sweep; return the words after it that are not its own."""
    kind = FLAGS[name][0]
    if kind == SWITCH:
        asked.own[name] = True
        return following
    if kind == WORD and not given:
        given, following = following[:1], following[1:]
    elif kind == MANY:
        given, following = [p for w in [*given, *following] for p in w.split(",") if p], []
    if not given:
        mistakes.append(f"{name} wants a value ({FLAGS[name][2]})")
    asked.own[name] = given if kind == MANY else "".join(given)
    return following


def _of_runs(asked: Asked, rest: list[str]) -> list[str]:
    """Read the flags that every run gets; return the mistakes."""
    try:
        args = parse(rest)
    except ConfigError as error:
        return str(error).splitlines()
    asked.debug = args.debug
    mistakes = [
        f"a sweep has no --{dest.replace('_', '-')}: use {instead}"
        for dest, instead in _REFUSED.items() if getattr(args, dest)
    ]
    reader = PlanReader("words")
    opts = reader.settings(dict(zip(args.opts[::2], args.opts[1::2], strict=True)), "words")
    asked.rest = dict(args.flags) | opts
    return mistakes + [m.removeprefix("words: words: ") for m in reader.mistakes]


def plan_of(asked: Asked) -> Plan:
    """Return the plan: the file's, cut and overridden by the words, or the words' alone.

    Raises:
        ConfigError: mistakes of the file or the words, one line each.
    """
    own, reader = asked.own, PlanReader("words")
    seeds = [int(w) if w.isdigit() else w for w in own.get("--seeds", [])]
    shots = [int(w) if w.lstrip("-").isdigit() else w for w in own.get("--shots", [])]
    if asked.file is not None:
        plan = read_plan(asked.file)
        if own.get("--trainers"):
            plan = replace(plan, trainers=pick(plan.trainers, own["--trainers"], "trainers"))
        if own.get("--datasets"):
            plan = replace(plan, datasets=pick(plan.datasets, own["--datasets"], "datasets"))
        if seeds:
            plan = replace(plan, seeds=reader.numbers(seeds, "--seeds"))
        if shots:
            plan = replace(plan, shots=reader.numbers(shots, "--shots", least=-1))
        if reader.mistakes:
            raise ConfigError("\n".join(m.removeprefix("words: ") for m in reader.mistakes))
        plan = replace(plan, override=asked.rest)
        return replace(plan, name=own["--name"]) if own.get("--name") else plan
    lacking = [f for f in ("--trainers", "--datasets") if not own.get(f)]
    if lacking:
        raise ConfigError(
            f"give a plan such as configs/sweeps/demo.yaml, or {' and '.join(lacking)} "
            "(fedvlm sweep --help lists the flags)"
        )
    plan = reader.plan(
        {"trainers": own["--trainers"], "datasets": own["--datasets"], "seeds": seeds or [1]}
        | ({"shots": shots} if shots else {}), "words",
    )
    plan = replace(plan, override=asked.rest)
    return replace(plan, name=own["--name"]) if own.get("--name") else named(plan)


def help_lines() -> list[str]:
    """Return the page of ``fedvlm sweep --help``."""
    shown = [(f"{name} {value}".strip(), text) for name, (_, value, text) in FLAGS.items()]
    width = max(len(left) for left, _ in shown)
    return [
        "fedvlm sweep PLAN.yaml [flags]", "fedvlm sweep --trainers A B --datasets X Y [flags]", "",
        *(f"  {left:<{width}}  {text}" for left, text in shown), "",
        "All other flags, and KEY VALUE pairs, are those of fedvlm run and hold for every cell.",
        "The same command goes on after a stop; finished cells are never run again.",
    ]


def main(words: Sequence[str]) -> int:
    """Run the verb; 0: every cell asked for is done, 1: some failed.

    Raises:
        FedvlmError: mistakes of the words or the plan, all of them, before anything runs.
        KeyboardInterrupt: whole rounds are saved.
    """
    if any(w in ("-h", "--help") for w in words):
        say(*help_lines())
        return 0
    asked = read_words(words)
    plan = plan_of(asked)
    jobs = asked.number("--jobs", 1)
    progress("loading PyTorch")
    from fedvlm.sweep.cells import cells_of
    from fedvlm.sweep.run import Sweep

    progress("checking every cell")
    cells = cells_of(plan)
    progress.clear()
    only = asked.only()
    if only is not None and only[-1] >= len(cells):
        raise ConfigError(f"--only {asked.own['--only']}: the cells are 0 to {len(cells) - 1}")
    if asked.own.get("--slurm"):
        return _slurm(asked, plan, words, len(cells))
    sweep = Sweep(plan, cells, jobs, only)
    if asked.own.get("--list"):
        say(*table_lines(sweep.rows()))
        return 0
    if asked.own.get("--dry-run"):
        say(*sweep.dry_lines(retry=bool(asked.own.get("--retry-failed"))))
        return 0
    return _run(asked, sweep)


def _run(asked: Asked, sweep: object) -> int:
    from fedvlm.sweep.pool import usual_threads
    from fedvlm.sweep.run import Sweep

    assert isinstance(sweep, Sweep)  # noqa: S101 (the import is late, its type is known)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = asked.number("--threads", usual_threads(sweep.jobs, os.environ, cores or 1))
    sweep.journal.prepare(sweep.plan.content())
    lock = None if sweep.only is not None else _alone(sweep.journal.folder)
    try:
        return sweep.run(
            threads, tuple(asked.own.get("--devices", ())),
            retry=bool(asked.own.get("--retry-failed")),
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "finished cells and whole rounds are saved; the same command goes on"
        ) from None
    finally:
        if lock is not None:
            lock.release()


def _alone(folder: Path) -> run_lock.RunLock:
    try:
        return run_lock.acquire(folder)
    except ConfigError as error:  # a tag makes other cells, not another sweep
        raise ConfigError(
            str(error).replace("this run its own --tag", "this sweep its own --name")
        ) from None


def _slurm(asked: Asked, plan: Plan, words: Sequence[str], cells: int) -> int:
    """Write the array script; its tasks get the same words without the script's own."""
    from fedvlm.sweep.slurm import script

    kept, skip = [], False
    for word in words:
        if word.startswith("--"):
            name = word.partition("=")[0].replace("_", "-").lower()
            skip = name.startswith("--slurm") or name in ("--jobs", "--only")
        if not skip:
            kept.append(word)
    path = Path(asked.own["--slurm"]).expanduser()
    text = script(
        plan.name, kept, cells, chunk=asked.number("--slurm-chunk", 1),
        time=asked.own.get("--slurm-time", ""), memory=asked.own.get("--slurm-mem", ""),
        cpus=asked.number("--slurm-cpus", 1), options=asked.own.get("--slurm-option", ()),
    )
    atomic.write_text(path, text)
    say(f"wrote {path}; submit it with: {shlex.join(['sbatch', str(path)])}")
    if asked.own.get("--only"):
        complain("--only is not part of the script: its tasks cover all cells", prefix="note")
    return 0
