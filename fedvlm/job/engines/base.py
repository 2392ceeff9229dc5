"""What an engine is: the clients' side of a run (``FED.ENGINE``).

A module of this folder that sets ``ENGINE`` to its word is an engine, and has one class that
derives from ``ClientSide``. It is imported when a run names it (``core.plugins``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.config.engines import ENGINES, FLOWER, SITES, WORKERS
from fedvlm.core.errors import ConfigError
from fedvlm.core.plugins import own_class
from fedvlm.evaluation.evaluator import Ask
from fedvlm.federation.local.images import Absent
from fedvlm.federation.rounds import FedState
from fedvlm.job.build import Built
from fedvlm.job.inputs import GivenInputs, Inputs
from fedvlm.runs.folder import RunFolder

READS = {  # key -> its flag, and the engines that read it
    "WORKERS": ("--workers", WORKERS), "SITES_AT": ("--sites-at", SITES),
    "SITE_FILE": ("--site-file", SITES), "SECURE_SUM": ("FED.SECURE_SUM", SITES),
    "FEDERATION": ("--federation", FLOWER, SITES),
}
Tell = Callable[[str], None]


class ClientSide:
    """The clients' side of one run: who computes them.

    A run calls ``check``, ``gather``, ``connect``, ``resume`` and ``meet``, in this order. What is
    not overridden here means: this process computes them.

    Attributes:
        ask: the clients' half of the baseline without training (``ClientMeter.template``), once
            connected.
    """

    ask: Ask

    def __init__(self, cfg: CfgNode) -> None:
        self.cfg = cfg

    def check(self, inputs: Inputs | None) -> None:
        """Refuse keys and given data that the engine cannot take, at first (``ConfigError``)."""

    @contextlib.contextmanager
    def gather(self, path: Path, inputs: Inputs | None) -> Iterator[Inputs | None]:
        """Yield what the run is built of; hang up at its end.

        Args:
            path: of the run's folder, which need not exist yet.
        """
        yield inputs

    @contextlib.contextmanager
    def connect(self, built: Built, folder: RunFolder, tell: Tell) -> Iterator[None]:
        """Let the engine compute the clients of a run, and end its processes after it.

        Args:
            tell: hears what goes wrong meanwhile.

        Raises:
            ConfigError: no worker can be started or reached.
        """
        self.ask = built.meter.template
        yield

    def resume(self, state: FedState | None) -> FedState | None:
        """Return the state that a run goes on from; excluded clients may be admitted again."""
        return state

    def baselines(self, clients: Sequence[int]) -> dict[str, dict[str, Any]] | None:
        """Return the baselines of clients whose images are not here; None: not known.

        Args:
            clients: whose test images are judged.
        """
        return None

    @property
    def sums(self) -> Mapping[str, int]:
        """Bytes of sums over single sites' images that came for baselines, by name."""
        return {}

    @property
    def counted(self) -> Mapping[str, Sequence[str]]:
        """Which counts of images each site told, by site; {}: all clients are here."""
        return {}

    @property
    def baselined(self) -> Collection[str]:
        """Baselines of which numbers of clients came, also where those of others did not."""
        return ()

    def meet(self) -> None:
        """Be ready for the first request.

        Raises:
            ConfigError: a worker or site is missing, or is of another run; says why.
        """


def client_side(cfg: CfgNode) -> ClientSide:
    """Return the clients' side of a run by its engine (``ConfigError``: an unread flag)."""
    refuse_unread(cfg)
    return own_class(ENGINES.load(cfg.FED.ENGINE), ClientSide)(cfg)


def refuse_unread(cfg: CfgNode) -> None:
    """Refuse a flag that the engine of a run does not read (``ConfigError``)."""
    fed = cfg.FED
    for key, (flag, *engines) in READS.items():
        if fed[key] and fed.ENGINE not in engines:
            raise ConfigError(f"{flag} {fed[key]} has no effect with --engine {fed.ENGINE}: use "
                              f"--engine {' or '.join(engines)}")


def refuse_memory(cfg: CfgNode, inputs: Inputs | None) -> None:
    """Refuse data in memory where other processes compute (``ConfigError``)."""
    if isinstance(inputs, GivenInputs):
        raise ConfigError(
            f"--engine {cfg.FED.ENGINE}: other processes cannot read data in a program's memory; "
            "save the images to a folder, or use the local engine"
        )


def leave_images(built: Built) -> None:
    """Let a server refuse questions for images of clients, which others have."""
    federation, size = built.federation, int(built.cfg.DATALOADER.TRAIN_X.BATCH_SIZE)
    federation.meter = None
    federation.batcher = Absent(federation.roster, size, "the driver")
