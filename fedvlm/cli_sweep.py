"""``fedvlm sweep``: a matrix of runs, resumable cell by cell.

``python -m fedvlm sweep configs/sweeps/demo.yaml --jobs 2``. Whether a cell is done is read from
its run folder, so a sweep stopped anywhere (``kill -9`` too) goes on with the same command, and
``table``, ``show`` and the rest find the runs where they always are.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from fedvlm import atomic, run_lock
from fedvlm.cli_sweep_plan import Plan
from fedvlm.cli_sweep_words import Asked, help_lines, plan_of, read_words
from fedvlm.console import complain, progress, say
from fedvlm.console_rows import table_lines
from fedvlm.errors import ConfigError


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
    from fedvlm.cli_sweep_cells import cells_of
    from fedvlm.cli_sweep_run import Sweep

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
    from fedvlm.cli_sweep_pool import usual_threads
    from fedvlm.cli_sweep_run import Sweep

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
    from fedvlm.cli_sweep_slurm import script

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
