"""A resident worker: builds a run once, then answers its driver's frames."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError
from fedvlm.distributed.facts import likeness
from fedvlm.distributed.flower.network import READY
from fedvlm.distributed.pool.site import PoolSite
from fedvlm.distributed.site import Site
from fedvlm.distributed.sockets.serving import converse, end_with, serve
from fedvlm.distributed.sockets.stream import listen, read_token
from fedvlm.distributed.terms import Terms
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
    with _given(handle) as sock, threads_of(cfg):
        converse(sock, b"", worker_of(build(cfg), states, say).answer)


def work_at(
    cfg: CfgNode, states: Path, address: str, token_file: str, say: Say,
    clients: Sequence[int] = (), handle: int | None = None,
) -> None:
    """Answer drivers that come to ``address`` and know the token, one at a time, for ever.

    Args:
        clients: of a site of the federation; none: a worker of a pool, which has all.
        handle: this end of a socket pair: this process ends as the other end does.

    Raises:
        ConfigError: the address cannot be had, or there is no token or no such socket.
        FedvlmError: whatever of the run cannot be built.
    """
    if handle is not None:
        line = _given(handle)  # noqa: F841 (held: it would be closed)
    token, door = read_token(token_file), listen(address)
    with door, threads_of(cfg):
        built = build(cfg)
        site = part_of(built, clients, states, say) if clients else worker_of(built, states, say)
        say(f"{READY} {address}: {cfg.TRAINER.NAME} on {cfg.DATASET.NAME}, "
            f"{len(clients) or cfg.FED.CLIENTS} clients")
        serve(door, token, site.answer, say)


def _given(handle: int) -> socket.socket:
    """Return the socket that a driver left open; this process ends with its other end.

    Raises:
        ConfigError: there is none.
    """
    try:
        sock = socket.socket(fileno=handle)
    except OSError as error:
        raise ConfigError(f"--handle {handle} is no socket: a driver gives it") from error
    end_with(sock)
    return sock


def worker_of(built: Built, states: Path, say: Say = lambda words: None) -> PoolSite:
    """Return the worker that computes clients of a run.

    Args:
        states: folder that the workers share.
    """
    plain = config_plain(built.cfg)
    return PoolSite(built.federation, states, plain, say, shared_facts(built.identity))


def part_of(
    built: Built, clients: Sequence[int], states: Path, say: Say = lambda words: None
) -> Site:
    """Return a site of some clients of a run; what the job knows of the data is compared, too.

    Args:
        states: folder of this site alone.

    Raises:
        ConfigError: the run has no such client.
    """
    stray = [c for c in clients if c >= built.federation.plan.clients]
    if stray:
        raise ConfigError(f"--clients: this run has no client {stray[0]}")
    beside = shared_facts(built.identity)
    site = Site(
        built.federation, clients, states, config_plain(built.cfg), beside["data"], say,
        Terms(logits=True),  # no owner: everything here is the driver's
    )
    site.facts |= beside
    site.like = likeness(site.config, site.facts)
    return site
