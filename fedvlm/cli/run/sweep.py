"""Methods x data sets x seeds, resumable cell by cell.

Whether a cell is done is read from its run folder, so a sweep stopped anywhere (kill -9 too) goes
on with the same command, and table, show and the rest find the runs where they always are. All
flags of fedvlm run that are not below, and KEY VALUE pairs, hold for every cell.
"""

from __future__ import annotations

import math
import shlex
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedvlm.cli.run._plan import MANY, alone, end_flags, listed, plan_flags, plan_of, threads_for
from fedvlm.console.parser import Parser, whole
from fedvlm.console.rows import table_lines
from fedvlm.console.screen import complain, progress, say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, fold
from fedvlm.core.files import user_path
from fedvlm.core.signals import saying
from fedvlm.sweep.plan import SweepPlan
from fedvlm.sweep.slurm import script
from fedvlm.sweep.tune.tuned import read_tuned, with_tuned

if TYPE_CHECKING:
    from fedvlm.sweep.run import Sweep

EXAMPLES = (
    "fedvlm sweep configs/sweeps/demo.yaml --jobs 2",
    "fedvlm sweep --trainers FedAvg FedTV --datasets eurosat pets --seeds 1 2 3 --root DATA/",
    "fedvlm sweep configs/sweeps/demo.yaml --dry-run  # what is to do, and how long it takes",
    "fedvlm sweep PLAN.yaml --tuned output/tuning/tune/tuned.json  # each with its tuned values",
    "fedvlm sweep configs/sweeps/demo.yaml --slurm array.sh --slurm-time 2:00:00",
)
ALSO = ("matrix", "grid", "search", "plan", "experiments")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    plan_flags(parser)
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
    add("--slurm-option", **MANY, type=listed, metavar="OPT", help="further #SBATCH options, such "
        "as gres=gpu:1")
    add("--tuned", default="", metavar="FILE", help="tuned.json of fedvlm tune: every method gets "
        "the values that were chosen for it")
    end_flags(parser)


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


def main(args: Namespace) -> int:
    """Run the verb; 0: every cell asked for is done, 1: some failed.

    Raises:
        FedvlmError: mistakes of the words or the plan, all of them, before anything runs.
        KeyboardInterrupt: whole rounds are saved.
    """
    plan = plan_of(args)
    if args.tuned:
        plan, notes = with_tuned(plan, read_tuned(Path(args.tuned).expanduser()))
        complain(*notes, prefix="note")
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
        args: ``threads``, ``jobs``, ``devices``, ``cell_timeout``.
        retry: whether failed cells are run again.
        until: see ``Sweep.run``.

    Raises:
        ConfigError: another process runs it.
        KeyboardInterrupt: whole rounds are saved.
    """
    threads = threads_for(args, {c.config["MODEL.BACKBONE.NAME"] for c in sweep.cells})
    sweep.journal.prepare(sweep.plan.content())
    held = None if sweep.only is not None else alone(sweep.journal.folder)
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


def _slurm(args: Namespace, plan: SweepPlan, cells: int) -> int:
    """Write the array script; its tasks get the same words without the script's own."""
    path = user_path(args.slurm)
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
