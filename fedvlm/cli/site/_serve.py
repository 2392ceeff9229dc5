"""``fedvlm site serve``: a resident worker."""

from __future__ import annotations

import re
from argparse import Namespace

from fedvlm.console.parser import Parser
from fedvlm.console.screen import complain
from fedvlm.core.files import user_path
from fedvlm.job.flags import pairs

NOWHERE = -1
OWN = ("listen", "states", "run", "handle", "clients")


def flags(parser: Parser) -> None:
    """Add what serving takes beside the flags of a run."""
    add = parser.add_argument
    add("--listen", default="", metavar="ADDRESS", help="host:port, or unix:PATH")
    add("--token-file", default="", metavar="FILE", help="the secret that a driver has to know; "
        "chmod 600")
    add("--states", default="", metavar="FOLDER", help="where clients' states lie, the same for "
        "all workers of a run")
    add("--run", default="", metavar="FOLDER", help="a run's folder in the place of its flags")
    add("--clients", default="", metavar="0,1", help="with --listen: a site of these clients, with "
        "states of its own")
    add("--handle", type=int, default=NOWHERE, metavar="N", help="a socket that the driver which "
        "began this process left open, in the place of --listen")


def mistakes(args: Namespace) -> list[str]:
    """Return what is missing, and what does not go together."""
    out = pairs(args)
    out += [] if args.states else ["--states FOLDER: say where clients' states lie"]
    begun = args.handle != NOWHERE
    if begun == bool(args.listen):
        out.append("say one of --listen ADDRESS and --handle N")
    if args.clients and not re.fullmatch(r"\d{1,9}(,\d{1,9})*", args.clients):
        out.append(f"--clients {args.clients}: numbers, such as 0,1")
    if args.clients and begun:
        out.append("--clients goes with --listen")
    if args.listen and not args.token_file:
        out.append("--listen wants --token-file FILE: whoever reaches a worker could work with it "
                   "(umask 077; openssl rand -hex 32 > FILE)")
    stray = [*args.flags, *args.opts[:1]] if args.run else []
    if stray:
        out.append(f"--run says all of the run: drop '{args.flag_names.get(stray[0], stray[0])}'")
    return out


def main(args: Namespace) -> int:
    """Serve; return the exit code.

    Raises:
        FedvlmError: whatever of the run cannot be built, or an address that cannot be had.
    """
    from fedvlm.job.resolve import config_of, resolve  # start-up: NumPy, 0.15 s

    if args.run:
        cfg = config_of(user_path(args.run), {})
    else:
        plan = resolve(args)
        complain(*plan.notes, prefix="note")
        cfg = plan.jobs[0].cfg
    from fedvlm.job.engines.serving import (  # start-up: PyTorch, 2 s
        work_at,
        work_for_driver,
    )

    states = user_path(args.states)
    if args.handle != NOWHERE:
        work_for_driver(cfg, states, args.handle, _say)
    else:
        clients = [int(c) for c in args.clients.split(",") if c]
        work_at(cfg, states, args.listen, args.token_file, _say, clients)
    return 0


def _say(words: str) -> None:
    complain(words, prefix="worker")
