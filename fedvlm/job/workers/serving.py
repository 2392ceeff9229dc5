"""What a worker's process does: builds a run once, then answers its server's frames."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError
from fedvlm.distributed.facts import likeness
from fedvlm.distributed.flower.invitation import read_invitation
from fedvlm.distributed.flower.network import READY
from fedvlm.distributed.flower.outpost import Outpost
from fedvlm.distributed.site import Site
from fedvlm.distributed.sockets.serving import converse, end_with, serve
from fedvlm.distributed.sockets.stream import EVER, listen
from fedvlm.distributed.terms import Terms
from fedvlm.federation.engine import LocalEngine
from fedvlm.job.build import Built, build_run
from fedvlm.job.run import threads_of
from fedvlm.job.sites.party import config_plain, shared_facts
from fedvlm.job.workers.site import PoolSite

Say = Callable[[str], None]


def serve_driver(cfg: CfgNode, states: Path, handle: int, chunk: int, say: Say) -> None:
    """Answer the process that began this one, until it hangs up or is gone.

    Args:
        handle: this end of its socket pair.
        chunk: how many clients it computes at once.

    Raises:
        ConfigError: there is no such socket.
        FedvlmError: whatever of the run cannot be built.
    """
    with _given(handle) as sock, threads_of(cfg):
        built = build_run(cfg)
        built.federation.engine = LocalEngine(chunk, built.federation.engine.sites)
        converse(sock, b"", worker_of(built, states, say).answer, EVER)


def serve_clients(
    cfg: CfgNode, states: Path, clients: Sequence[int], invitation: Path, say: Say
) -> None:
    """Answer as a site of some clients behind Flower, for ever.

    Args:
        states: folder of this site alone.
        invitation: file of the federation's; the site's key lies beside it.

    Raises:
        ConfigError: the invitation is for another key, or the run has no such client.
        FedvlmError: whatever of the run cannot be built.
    """
    outpost = Outpost([invitation.parent], read_invitation(invitation), say)
    with outpost.quarters(), listen(outpost.path) as door, outpost, threads_of(cfg):
        site = worker_site(build_run(cfg), clients, states, say)
        say(f"{READY} its own socket: {cfg.TRAINER.NAME} on "
            f"{cfg.DATASET.NAME}, {len(clients)} clients")
        serve(door, outpost.token, site.answer, say)


def _given(handle: int) -> socket.socket:
    """Return the socket that a server left open; this process ends with its other end.

    Standard input is a socket, too, that tells the server of each second of work.

    Raises:
        ConfigError: there is none.
    """
    try:
        sock = socket.socket(fileno=handle)
    except OSError as error:
        raise ConfigError(f"--handle {handle} is not a socket: workers are started only by a "
                          "run") from error
    end_with(sock, socket.socket(fileno=os.dup(0)) if stat.S_ISSOCK(os.fstat(0).st_mode) else None)
    return sock


def worker_of(built: Built, states: Path, say: Say = lambda words: None) -> PoolSite:
    """Return the worker that computes clients of a run; all workers share the folder of states."""
    plain = config_plain(built.cfg)
    return PoolSite(built.federation, states, plain, say, shared_facts(built.identity))


def worker_site(
    built: Built, clients: Sequence[int], states: Path, say: Say = lambda words: None
) -> Site:
    """Return a site of some clients of a run; what the job knows of the data is compared, too.

    Args:
        clients: of the run (else ``ConfigError``).
        states: folder of this site alone.
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
