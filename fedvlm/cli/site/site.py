"""A place where clients are: serve answers the driver of a run.

serve builds a run once, of the same flags (or of its folder, --run), and then works for whoever
runs it with --engine workers --workers-at and knows the token. All workers of a run share one
folder of states. Where the driver begins its workers by itself, it calls this command.
"""

from __future__ import annotations

from argparse import Namespace

from fedvlm.cli.site import _serve
from fedvlm.console.parser import Parser
from fedvlm.core.errors import did_you_mean

EXAMPLES = (
    "fedvlm site serve --listen 0.0.0.0:7007 --token-file token --states /shared/states --demo",
    "fedvlm site serve --listen unix:/tmp/w0 --token-file token --states st/ --run output/.../run",
)
ALSO = ("serve", "worker")
WHAT = ("serve",)


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    parser.add_argument("what", nargs="?", default="", help=f"one of: {', '.join(WHAT)}")
    _serve.flags(parser)
    parser.checks.append(_mistakes)


def _mistakes(args: Namespace) -> list[str]:
    if args.what not in WHAT:
        near = did_you_mean(args.what, WHAT) if args.what else ""
        return [f"say what: {', '.join(WHAT)}{near}"]
    return _serve.mistakes(args)


def main(args: Namespace) -> int:
    """Do what the first word says; return the exit code.

    Raises:
        FedvlmError: whatever is wrong.
    """
    return _serve.main(args)
