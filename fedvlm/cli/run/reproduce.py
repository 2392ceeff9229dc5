"""Run a paper's protocol and compare with its published numbers.

A recipe (configs/recipes) is the plan of a sweep and the numbers that the paper printed. What has
run is not run again; acceptance.md and acceptance.json in the recipe's folder hold each cell:
published, measured, difference in points and in standard deviations, verdict. A cell whose images
or weights are missing is not run, and says why. Flags of fedvlm run hold for every run; one that
changes the protocol makes its cells "another protocol".
"""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING

from fedvlm.cli.run._plan import INSTEAD, flatten, read_run_settings, worker_flags
from fedvlm.cli.run.sweep import run_sweep
from fedvlm.console.parser import Parser, amount, number_words
from fedvlm.console.rows import table_lines
from fedvlm.console.screen import progress, say
from fedvlm.core.errors import ConfigError, plural
from fedvlm.core.files import user_path
from fedvlm.job.flags import add_flags
from fedvlm.sweep.plan import PlanReader

if TYPE_CHECKING:
    from fedvlm.recipes.acceptance import Acceptance
    from fedvlm.recipes.trial import Row, Trial

EXAMPLES = (
    "fedvlm reproduce  # list all recipes",
    "fedvlm reproduce fedmgp --dry-run  # show what it would run; writes nothing",
    "fedvlm reproduce pfedmoap --root DATA/ --devices cuda:0",
    "fedvlm reproduce --all --budget 24 --root DATA/  # runs that fit into a day",
)
ALSO = ("recipe", "recipes", "replicate", "acceptance", "paper")
OUTPUT = "output/recipes"
DRY = "this dry run starts nothing; without --dry-run it runs"
HOUR = 3600.0


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("opts", nargs="*", metavar="RECIPE", help="recipes by name or file, and KEY VALUE pairs "
        "for every run; without any: list the recipes")
    add("--all", action="store_true", help="every recipe")
    add("--budget", type=amount("hours", 0), default=math.inf, metavar="HOURS",
        help="start no run that would end after this many hours; the rest is not run (default: "
        "no limit)")
    add("--seeds", nargs="+", type=number_words, default=[], metavar="N", help="seeds to use "
                                                                         "instead of the recipe's")
    add("--dry-run", action="store_true", help="show the cells, missing data or weights, "
        "numbers of trained and sent parameters; writes nothing")
    worker_flags(parser)
    add_flags(parser, shown=False)
    parser.checks.append(_read)


def _read(args: Namespace) -> list[str]:
    """Part the recipes' names from KEY VALUE pairs; return the mistakes.

    Leaves ``recipes`` and ``settings`` in the namespace.
    """
    flatten(args, "devices")
    flatten(args, "seeds")
    first = next((i for i, w in enumerate(args.opts) if w.isupper() and "." in w), len(args.opts))
    args.recipes, args.opts = args.opts[:first], args.opts[first:]
    mistakes = [f"the recipe sets this: drop {args.spelling[dest]}" for dest in
                ("trainer", "rule", "dataset", "dataset_config_file", "trainer_config_file",
                 "demo", "images", "method") if dest in args.spelling]
    mistakes += [f"{args.spelling[dest]} does not work with a recipe: use {INSTEAD[dest]}"
                 for dest in ("eval_only", "model_dir", "load_epoch", "no_train", "print_config",
                              "version") if dest in args.spelling]
    mistakes += [f"a recipe chooses the folders of its runs: drop --{key.lower()}"
                 for key in ("TAG", "RESUME") if key in args.flags]
    if args.all and args.recipes:
        mistakes.append(f"--all already means every recipe; drop it or {' '.join(args.recipes)}")
    reader = PlanReader("words")
    args.seeds = reader.numbers([int(w) if w.isdigit() else w for w in args.seeds], "--seeds") \
        if args.seeds else ()
    return mistakes + read_run_settings(args, reader)


def main(args: Namespace) -> int:
    """Run the verb; 0: done, 1: some runs failed, 2: nothing was run.

    Raises:
        FedvlmError: mistakes of the words or of a recipe, before anything runs.
        KeyboardInterrupt: whole rounds are saved, the acceptance files written.
    """
    progress("loading PyTorch")
    from fedvlm.recipes.order import (  # start-up: PyTorch
        begin_within,
        budget_name,
        budget_words,
        by_worth,
        queue_rows,
        turns_of,
        worths,
    )
    from fedvlm.recipes.recipe import read_recipe, recipe_names  # start-up: PyTorch, 2 s
    from fedvlm.recipes.trial import trial_of  # start-up: PyTorch
    from fedvlm.sweep.cells import Checker  # start-up: PyTorch

    names = recipe_names() if args.all else args.recipes
    if not names:
        progress.clear()
        say(*table_lines(_list(recipe_names())),
            "GPU hours and GB (of images and weights) are estimates; + and ?: of some sets or of "
            "all nothing is known; hours on this machine: --dry-run",
            "one of them: fedvlm reproduce NAME --dry-run; no published number was verified here")
        return 0
    recipes = [read_recipe(name) for name in dict.fromkeys(names)]
    settings = dict(args.settings)
    output = user_path(settings.pop("OUTPUT_DIR", OUTPUT))
    checker, trials = Checker(), []
    for recipe in recipes:
        progress(f"checking {recipe.name}")
        trials.append(trial_of(recipe, settings, output, args.seeds, checker))
    _look_for_weights(args, trials)
    progress("adding up what the runs cost")
    value = worths(trials)
    trials = by_worth(trials, value)
    progress.clear()
    _foresee(trials, named=not args.dry_run)
    if not args.dry_run:
        return _run(args, trials, value)
    turns = turns_of(trials, value, args.jobs)
    begins = begin_within(turns, args.budget, args.jobs)
    limited = not math.isinf(args.budget)
    if turns:
        say("the runs in their order, what confirms most published numbers in an hour first:",
            *(f"  {line}" for line in table_lines(queue_rows(turns, begins if limited else ()))),
            *([budget_words(turns, begins, args.budget, args.jobs)] if limited else []))
    late = f"{budget_name(args.budget)} should end before it"
    for row in (row for trial in trials for row in trial.rows):
        row.late = late
    for turn in compress(turns, begins):
        turn.row.late = ""
    for trial in trials:
        _show(trial, DRY, alone=len(trials) == 1)
    say("dry run: nothing was written")
    return 0


def _look_for_weights(args: Namespace, trials: Sequence[Trial]) -> None:
    """Take out what lacks its weights; a dry run takes them as there where a run could fetch them.
    """
    from fedvlm.models.load.weights import hub_is_open  # start-up: PyTorch
    from fedvlm.recipes.trial import leave_out_without_towers  # start-up: PyTorch
    from fedvlm.sweep.run import Sweep  # start-up: PyTorch

    if args.dry_run and hub_is_open():
        return
    waiting: list[Row] = []
    progress("looking for backbone weights")
    for trial in trials:
        todo = Sweep(trial.plan, trial.runnable, args.jobs).to_do(retry=True) \
            if trial.runnable else []
        waiting += [row for row in trial.rows if any(cell in todo for cell in row.cells)]
    leave_out_without_towers(waiting)


def _foresee(trials: Sequence[Trial], named: bool) -> None:
    """Say what the runs of each recipe, and of all, will cost; where none can run: would.

    Args:
        named: whether to say what cannot run, too, and why.
    """
    from fedvlm.recipes.outlay import (  # start-up: PyTorch
        Files,
        Outlay,
        outlay_of,
        reads_of,
        speed_here,
    )

    total, read, count = Outlay(0.0, 0.0), Files({}, {}), 0
    some = any(not row.why for trial in trials for row in trial.rows)
    for trial in trials:
        rows, note = [row for row in trial.rows if not row.why], "finished runs are not made again"
        if not rows:
            rows, note = trial.rows, "none of them can run here"
        effort, files, runs = outlay_of(rows), reads_of(rows), sum(row.runs for row in rows)
        cost = effort.words(speed_here()) if effort else "hours unknown"
        if not (some and rows[0].why):
            total, read, count = total + (effort or Outlay(0.0, 0.0)), read | files, count + runs
        if runs:
            say(f"recipe {trial.recipe.name}: {runs} runs, {cost}; reads {files.words()} "
                f"(estimates by arithmetic; {note})")
    if len(trials) > 1 and total.flops:
        say(f"all {len(trials)} recipes: {count} runs{' that can run here' if some else ''}, "
            f"{total.words(speed_here())}; reads {read.words()}")
    missing = Counter(row.why for trial in trials for row in trial.rows if row.why)
    if named and some:
        say(*(f"cannot run here: {plural(n, 'row')}: {why}" for why, n in missing.items()))


def _list(names: Sequence[str]) -> list[dict[str, object]]:
    from fedvlm.recipes.outlay import (  # start-up: PyTorch
        GPU,
        READERS,
        Outlay,
        few,
        outlays,
        reads_of,
    )
    from fedvlm.recipes.recipe import read_recipe  # start-up: PyTorch
    from fedvlm.recipes.trial import protocol_rows  # start-up: PyTorch

    rows: list[dict[str, object]] = []
    for name in names:
        progress(f"adding up what {name} costs")
        recipe = read_recipe(name)
        runs = protocol_rows(recipe.plan)
        known, files = outlays(runs), reads_of(runs)
        effort = sum(known, Outlay(0.0, 0.0)) if known else None
        part = "+" if len(known) < len(runs) else ""
        rows.append({
            "recipe": name, "data sets": len(recipe.plan.datasets),
            "methods": len(recipe.plan.trainers), "runs": sum(row.runs for row in runs),
            "GPU hours": few(effort.hours(GPU, READERS)) + part if effort else "?",
            "GB": (few(files.gigabytes) if files.gigabytes else "") + "+" * bool(files.unknown),
            "published": len(recipe.published), "can confirm": recipe.confirms,
            "paper": recipe.paper,
        })
    return rows


def _run(args: Namespace, trials: Sequence[Trial], value: Mapping[int, float]) -> int:
    """Run all that fits, seed by seed, and write the acceptance files, also after Ctrl-C."""
    from fedvlm.recipes.acceptance import NAME  # start-up: PyTorch
    from fedvlm.recipes.kept import lines_of  # start-up: PyTorch
    from fedvlm.recipes.order import budget_name, seeds_of  # start-up: PyTorch
    from fedvlm.sweep.run import Sweep  # start-up: PyTorch

    for trial in trials:
        lines_of(trial.folder / f"{NAME}.json")  # a damaged one is refused before anything runs
    until = time.monotonic() + args.budget * HOUR
    failed, pending, measured, made = 0, "stopped before it", 0, 0
    try:
        for at_once in seeds_of(trials, value):
            for trial, cells in at_once:
                sweep = Sweep(trial.plan, cells, args.jobs)
                todo = sweep.to_do(retry=True)
                if any(sweep.fits(cell, until) for cell in todo):
                    failed |= run_sweep(args, sweep, retry=True, until=until)
                    made += len(todo) - len(sweep.waiting)
        pending = f"{budget_name(args.budget)} " + (
            "was used by other runs" if made else "is too short for any run")
    finally:
        for trial in trials:
            shown = _show(trial, pending, alone=len(trials) == 1).with_file(trial.folder)
            measured += sum(line.measured is not None for line in (*shown.lines, *shown.earlier))
            if shown.kept or shown.earlier:
                say("the acceptance file keeps the numbers of earlier commands: "
                    f"{shown.kept} cells, and {len(shown.earlier)} under other words or weights")
            say(f"acceptance: {shown.write(trial.folder)}")
            if packed := trial.pack():
                say(f"sealed runs: {packed} (python scripts/evidence publish takes it)")
    if not measured and not failed:
        why = Counter(row.why for trial in trials for row in trial.rows if row.why)
        raise ConfigError(
            f"nothing was run: {pending}" if any(trial.runnable for trial in trials) else
            f"nothing was run: no row of {len(trials)} recipe(s) can run here: "
            f"{why.most_common(1)[0][0] if why else 'they have none'}")
    return failed


def _show(trial: Trial, pending: str, alone: bool) -> Acceptance:
    """Say what became of a recipe: of several only the cells that are judged; return it."""
    from fedvlm.recipes.acceptance import Acceptance  # start-up: PyTorch
    from fedvlm.recipes.trial import Measured  # start-up: PyTorch

    measured = Measured(trial, pending)
    acceptance = Acceptance(trial.recipe, trial.lines(measured), trial.tallies(measured))
    runs = len(trial.runnable)
    refused = sum(bool(row.why) for row in trial.rows)
    cells = [row for row in acceptance.rows() if alone or row["seeds"]]
    say(f"recipe {trial.recipe.name}: {trial.recipe.paper}",
        *(f"  {line}" for line in table_lines(cells)),
        *(f"  {line}" for line in table_lines(acceptance.number_rows())),
        *(f"  {reason}" for reason in acceptance.reasons()),
        f"{runs} runs of {len(trial.rows) - refused} rows"
        + (f"; {refused} rows cannot run" if refused else "")
        + f"; cells: {acceptance.summary()}")
    return acceptance
