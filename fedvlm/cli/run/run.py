"""Train one method on one data set, with one or several seeds (the main job)."""

from __future__ import annotations

import contextlib
import gc
import importlib
from argparse import Namespace
from collections.abc import Iterator

from fedvlm.config.build import config_lines
from fedvlm.console.parser import Parser
from fedvlm.console.screen import complain, progress, say
from fedvlm.job.flags import add_flags, add_opts

EXAMPLES = (
    "fedvlm run --demo --rounds 2 --engine workers --workers 2  # docs/workers.md",
    "fedvlm run --root DATA/ --dataset eurosat --trainer FedTV --seeds 1 2 3 --opts OPTIM.LR 0.01",
)
ALSO = ("train", "start", "demo", "resume", "main", "fit")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add_flags(parser)
    add_opts(parser)


def main(args: Namespace) -> int:
    """Run, seed by seed, then show the table over the seeds."""
    if args.version:
        say(f"fedvlm {importlib.import_module('fedvlm').__version__}")
        return 0
    with _uncollected():
        from fedvlm.job.resolve import resolve  # start-up: NumPy, 0.15 s

        progress("loading PyTorch")  # with the trainer, and with the run itself
        plan = resolve(args)
        if not args.print_config:
            from fedvlm.job.run import report_seeds, run_job  # start-up: PyTorch, 2 s
    if args.print_config:
        for job in plan.jobs:
            head = [f"# seed {job.cfg.SEED}"] if len(plan.jobs) > 1 else []
            say(*head, *config_lines(job.cfg, job.origins, plan.schema))
        complain(*plan.notes, prefix="note")
        return 0
    complain(*plan.notes, prefix="note")
    if plan.request.demo:
        from fedvlm.job.results import demo  # start-up: PyTorch, 2 s

        if demo.is_whole_demo(plan.request):
            both = [run_job(jobs.jobs[0], jobs.request)
                    for jobs in (demo.head_jobs(plan.request), plan)]
            demo.show_summary(*filter(None, both))
            return 0
    done = [run_job(job, plan.request) for job in plan.jobs]
    if len(done) > 1:
        report_seeds([results for results, _ in filter(None, done)])
    return 0


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Load modules without the garbage collector, which finds nothing in them: 0.3 s of 2.5.

    What was loaded is then frozen, so that no later collection walks it: it lives to the end.
    """
    if not gc.isenabled() or gc.get_freeze_count():  # by the caller, who has a reason
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
