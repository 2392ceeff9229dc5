"""Tune every method of a plan with the same budget.

Searches optimiser, learning rates, local epochs and at most two options of the method. Trials are
scored on the clients' validation images, never on test images. Every method gets the same number of
trials; the first one uses the method's defaults. The result, tuned.json, carries a checksum; fedvlm
sweep --tuned reads it. An interrupted tuning resumes with the same command. What the plan sets
(local-epochs: 2) is not searched.
"""

from __future__ import annotations

from argparse import Namespace

from fedvlm.cli.run._plan import alone, end_flags, plan_flags, plan_of, threads_for
from fedvlm.console.parser import Parser, whole_number
from fedvlm.console.screen import progress, say
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import user_path
from fedvlm.core.signals import saying

EXAMPLES = (
    "fedvlm tune configs/sweeps/tune.yaml --budget 20 --jobs 2",
    "fedvlm tune --trainers FedAvg FedProx --datasets digits --shots 8 --backbone tiny --budget 4",
    "fedvlm tune --report output/tuning/tune/tuned.json  # budget used, uncertainty of the scores",
    "fedvlm tune --report docs/results/tuned.json  # the same for the published results",
    "fedvlm tune --write-defaults docs/results/tuned.json --into tuned  # one file per entry",
    "fedvlm tune --write-defaults output/tuning/tune/tuned.json  # write into configs/trainers/",
)
ALSO = ("tuning", "hpo", "hyperparameters", "optuna", "optimise", "optimize")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    plan_flags(parser)
    parser.add_argument("--budget", type=whole_number(1), default=20, metavar="N", help="trials "
                        "per method; the first uses the method's defaults (20)")
    parser.add_argument("--report", default="", metavar="FILE", help="report the budget "
        "used and the uncertainty of the scores of a tuned.json; runs nothing")
    parser.add_argument("--into", default="", metavar="FOLDER", help="--report: folder for "
                        "CSV files and figures (default: report/ in the tuning's folder); "
                        "--write-defaults: folder for one file per entry; configs/trainers/ is "
                        "not changed")
    parser.add_argument("--write-defaults", default="", metavar="FILE", help="write the values of "
        "a tuned.json into configs/trainers/*.yaml of this checkout; runs nothing")
    end_flags(parser)


def main(args: Namespace) -> int:
    """Run the verb; 0: every method is tuned, 1: some could not be.

    Raises:
        FedvlmError: mistakes of the words or the plan, all of them, before anything runs.
        KeyboardInterrupt: what has been scored is kept.
    """
    if args.into and not (args.report or args.write_defaults):
        raise ConfigError("--into needs --report FILE or --write-defaults FILE; add one of them, "
                          "or drop --into")
    if args.report or args.write_defaults:
        return _of_file(args)
    plan = plan_of(args)
    progress("loading PyTorch")
    from fedvlm.sweep.tune.report import report  # start-up: PyTorch
    from fedvlm.sweep.tune.run import Tuning  # start-up: PyTorch, 2 s

    progress("checking every method")
    tuning = Tuning(plan, args.budget, args.jobs)
    progress.clear()
    tuning.folder.mkdir(parents=True, exist_ok=True)
    try:
        with alone(tuning.folder):
            code = tuning.run(
                threads_for(args, tuning.backbones), tuple(args.devices), timeout=args.cell_timeout
            )
    except KeyboardInterrupt as stop:
        raise saying(
            stop, "finished trials are saved; the same command resumes"
        ) from None
    report(tuning.tuned)
    return code


def _of_file(args: Namespace) -> int:
    """Do what is asked of a tuning's result."""
    flag = "--report" if args.report else "--write-defaults"
    if args.report and args.write_defaults:
        raise ConfigError("--report and --write-defaults cannot be combined; drop one of them")
    if args.file is not None or args.trainers or args.datasets or args.settings:
        raise ConfigError(f"{flag} FILE runs nothing: drop the plan and its "
                          "settings")
    progress("loading PyTorch")
    from fedvlm.sweep.tune.defaults import write_defaults, write_files  # start-up: PyTorch
    from fedvlm.sweep.tune.report import report  # start-up: PyTorch

    progress.clear()
    if args.report:
        report(user_path(args.report), user_path(args.into) if args.into else None)
        return 0
    tuned = user_path(args.write_defaults)
    written = write_files(tuned, user_path(args.into)) if args.into else write_defaults(tuned)
    say(*(f"{path}: {what}" for path, what in written))
    return 0
