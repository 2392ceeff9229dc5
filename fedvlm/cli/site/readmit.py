"""Re-admit excluded clients when the run is next started.

For a client whose site was excluded (its updates were refused in several rounds in a row): its site
is asked again, and the client goes on from its accepted state. With --anew also for a client whose
state is gone at its site: it goes on as if it had never worked, from the initial personal tensors
and what the server sends today. The command that began the run does it, once, when it goes on; log,
checkpoints and results say so. A state that is gone is never made anew without this word.
"""

from __future__ import annotations

from argparse import Namespace

from fedvlm.console.parser import Parser, whole_number
from fedvlm.console.screen import say

EXAMPLES = (
    "fedvlm readmit RUN_FOLDER 1  # include its site again",
    "fedvlm readmit RUN_FOLDER 1 3 --anew  # their states are lost",
)
ALSO = ("readmission", "include", "forgive", "unban")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument("clients", nargs="+", type=whole_number(0), metavar="CLIENT",
                        help="numbers of the clients")
    parser.add_argument("--anew", action="store_true",
                        help="restart them from the initial state: their states are lost")


def main(args: Namespace) -> int:
    """Write the wish down; return the exit code.

    Raises:
        ConfigError: the run is no federation of sites, is at work, or has no such client.
        DataError: RUN is no run folder, or a file of it is damaged.
    """
    from fedvlm.api.rebuild import run_folder  # start-up: PyTorch, 2 s
    from fedvlm.job.sites.wishes import wish  # start-up: PyTorch

    path = run_folder(args.run)
    command, sites = wish(path, args.clients, args.anew)
    how = "anew" if args.anew else "from their accepted states, if their site is excluded,"
    say(f"clients {', '.join(map(str, args.clients))} ({', '.join(sites)}) go on {how} when the "
        "run does:", f"  {command}")
    return 0
