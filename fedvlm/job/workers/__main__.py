"""``python -m fedvlm.job.workers``: a worker of a run; only a run itself starts one."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from pathlib import Path

from fedvlm.console.guard import exit_code_of
from fedvlm.console.screen import complain
from fedvlm.core.signals import install_handlers
from fedvlm.core.threads import sleep_while_waiting
from fedvlm.job.resolve import run_config
from fedvlm.job.workers.serving import serve_clients, serve_driver


def main(words: list[str]) -> int:
    """Work as the words say; return the exit code (``FedvlmError``: the run cannot be built)."""
    parser = ArgumentParser("fedvlm.job.workers")
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("states", type=Path, help="folder of clients' states")
    parser.add_argument("--handle", type=int, help="end of a socket pair that the server holds")
    parser.add_argument("--chunk", type=int, help="clients that the server computes at once")
    parser.add_argument("--clients", help="of a site behind Flower")
    parser.add_argument("--federation", type=Path, help="its invitation")
    args = parser.parse_args(words)
    cfg = run_config(args.run, {}, started=True)
    if args.clients:
        serve_clients(cfg, args.states, [int(c) for c in args.clients.split(",")],
                      args.federation, _say)
    else:
        serve_driver(cfg, args.states, args.handle, args.chunk, _say)
    return 0


def _say(words: str) -> None:
    complain(words, prefix="worker")


if __name__ == "__main__":
    sleep_while_waiting(os.environ)
    install_handlers()
    sys.exit(exit_code_of(lambda: main(sys.argv[1:]), sys.argv[1:]))
