"""What these verbs have in common: a run, which of its models, and where they compute."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from fedvlm.console.parser import Parser, whole_number
from fedvlm.console.screen import complain, progress

if TYPE_CHECKING:
    from fedvlm.api.run import Run


def add_run(parser: Parser) -> None:
    """Add the run and the flags that choose its models."""
    add = parser.add_argument
    add("run", metavar="RUN", help="a run folder, finished or not")
    add("--client", default="global", metavar="N", help="a client's number or name, global, or all "
        "(global)")
    add_model_flags(parser)


def add_model_flags(parser: Parser) -> None:
    """Add the flags that say where a run's model is computed, by whose code, and of which round."""
    add = parser.add_argument
    add("--device", default="auto", metavar="X", help="auto, cpu, cuda, cuda:N, mps")
    add("--weights", default="", metavar="X", help="file of the backbone's weights, if it was "
        "moved since the run")
    add_trust(parser)
    add("--round", type=whole_number(0), default=None, metavar="N", help="the model of an earlier "
        "round, if its state is kept (the last)")


def add_trust(parser: Parser) -> None:
    """Add the flags that let a method's own file run, which a run folder names."""
    add = parser.add_argument
    add("--trainer", default="", metavar="FILE", help="the run's method, if it is a file of its "
        "own: the file here, the one that the run recorded")
    add("--trust-code", default="", metavar="SHA256", help="run the method's own file that the "
        "folder names, if this is its digest")


def open_run(args: Namespace) -> Run:
    """Return the run that the words name.

    Raises:
        FedvlmError: there is none.
    """
    progress("loading PyTorch")
    from fedvlm.api.run import load  # start-up: PyTorch, 2 s

    run = load(args.run, device=args.device, weights=args.weights, trainer=args.trainer,
                trust_code=args.trust_code, round=args.round)
    if args.round is not None:
        complain(f"round {args.round} of {run.config.FED.ROUNDS}, as asked for", prefix="note")
    return run
