"""What these verbs have in common: a run, which of its models, and where they compute."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from fedvlm.console.parser import Parser
from fedvlm.console.screen import progress

if TYPE_CHECKING:
    from fedvlm.api.run import Run


def add_run(parser: Parser, default: str = "global") -> None:
    """Add the run and the flags that choose its models."""
    add = parser.add_argument
    add("run", metavar="RUN", help="a run folder, finished or not")
    add("--client", default=default, metavar="N", help=f"a client's number or name, global, or all "
        f"({default})")
    add("--device", default="auto", metavar="X", help="auto, cpu, cuda, cuda:N, mps")
    add("--weights", default="", metavar="X", help="file of the backbone's weights, if it was "
        "moved since the run")


def open_run(args: Namespace) -> Run:
    """Return the run that the words name.

    Raises:
        FedvlmError: there is none.
    """
    progress("loading PyTorch")
    from fedvlm.api.run import load  # start-up: PyTorch, 2 s

    return load(args.run, device=args.device, weights=args.weights)
