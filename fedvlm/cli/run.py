"""``fedvlm run``: the main job, also without the word."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from fedvlm.console.screen import complain, progress, say


def run(words: Sequence[str]) -> int:
    """Do the main job: ``fedvlm run [flags] [KEY VALUE ...]``.

    Raises:
        FedvlmError: whatever is wrong; ``main`` turns it into a sentence and an exit code.
    """
    from fedvlm.job.flags import parse
    from fedvlm.job.resolve import resolve

    args = parse(words)
    if args.version:
        say(f"fedvlm {importlib.import_module('fedvlm').__version__}")
        return 0
    if args.help:
        from fedvlm.cli.parser import help_lines

        say(*help_lines())
        return 0
    progress("loading PyTorch")  # with the trainer, and with the run itself
    asked = resolve(args)
    if args.print_config:
        from fedvlm.config.build import config_lines

        for job in asked.jobs:
            head = [f"# seed {job.cfg.SEED}"] if len(asked.jobs) > 1 else []
            say(*head, *config_lines(job.cfg, job.origins, asked.schema))
        complain(*asked.notes, prefix="note")
        return 0
    complain(*asked.notes, prefix="note")
    from fedvlm.job import run as cli_run

    for job in asked.jobs:
        code = int(cli_run.run_job(job.cfg, job.origins, args))
        if code:
            return code
    if len(asked.jobs) > 1:
        return int(cli_run.report_seeds([job.cfg for job in asked.jobs], args))
    return 0
