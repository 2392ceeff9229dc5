"""A resident worker: builds a run once, then answers its driver's frames."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError
from fedvlm.distributed.pool.site import PoolSite
from fedvlm.distributed.sockets.serving import converse, end_with, serve
from fedvlm.distributed.sockets.stream import listen, read_token
from fedvlm.job.build import Built, build
from fedvlm.job.run import threads_of
from fedvlm.job.sites.party import config_plain, shared_facts

Say = Callable[[str], None]


def work_for_driver(cfg: CfgNode, states: Path, handle: int, say: Say) -> None:
    """Answer the process that began this one, until it hangs up or is gone.

    Args:
        handle: this end of its socket pair.

    Raises:
        ConfigError: there is no such socket.
        FedvlmError: whatever of the run cannot be built.
    """
    try:
        sock = socket.socket(fileno=handle)
    except OSError as error:
        raise ConfigError(f"--handle {handle} is no socket: a driver gives it") from error
    with sock:
        end_with(sock)
        with threads_of(cfg):
            converse(sock, b"", worker_of(build(cfg), states, say).answer)


def work_at(cfg: CfgNode, states: Path, address: str, token_file: str, say: Say) -> None:
    """Answer drivers that come to ``address`` and know the token, one at a time, for ever.

    Raises:
        ConfigError: the address cannot be had, or there is no token.
        FedvlmError: whatever of the run cannot be built.
    """
    token, door = read_token(token_file), listen(address)
    with door, threads_of(cfg):
        site = worker_of(build(cfg), states, say)
        say(f"ready at {address}: {cfg.TRAINER.NAME} on {cfg.DATASET.NAME}, "
            f"{cfg.FED.CLIENTS} clients")
        serve(door, token, site.answer, say)


def worker_of(built: Built, states: Path, say: Say = lambda words: None) -> PoolSite:
    """Return the worker that computes clients of a run.

    Args:
        states: folder that the workers share.
    """
    plain = config_plain(built.cfg)
    return PoolSite(built.federation, states, plain, say, shared_facts(built.identity))
