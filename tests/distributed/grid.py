"""A small federation twice: by the local engine, and at two sites that see their own data.

The frames to the sites go through Unix sockets, as those of sites on one machine do.
The backbone is one; models, methods, batchers and states are each side's own. Training images of
clients of the other site are not numbers at a site, and the server has counts only.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvlm.check.compare import copy_fed
from fedvlm.check.world import BASE, BATCH, NEW, CheckWorld, Setup
from fedvlm.core.trees import State
from fedvlm.distributed.carriers import Answer
from fedvlm.distributed.server.policy import Policy
from fedvlm.distributed.server.remote import RemoteEngine
from fedvlm.distributed.site import Site
from fedvlm.distributed.sockets.serving import serve
from fedvlm.distributed.sockets.sites import SiteSockets
from fedvlm.distributed.sockets.stream import listen
from fedvlm.distributed.store import SiteStore
from fedvlm.evaluation import ClientMeter
from fedvlm.federation.batches import IndexSplit
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.local.images import Absent
from fedvlm.federation.rounds import Event, Federation, FedState, RoundFinished, WholeState
from fedvlm.federation.server import Measure, Row
from fedvlm.federation.trainer import Trainer
from tests.distributed.in_process import InProcess

SITES = (0, 0, 1, 1)
CHUNK = 4
CONFIG: dict[str, Any] = {"OPTIM.LR": 0.05, "TRAINER.NAME": "any", "FED.ROUNDS": 2, "X.DIR": "/a/b"}
RUN = "ab" * 16
NAMES = ("site0", "site1")
ALL = Measure(cross=True, calibration=True, confusion=True)


@dataclass
class Tests:
    """What a meter reads beside the images."""

    labels: np.ndarray
    clients: Sequence[IndexSplit]
    global_test: np.ndarray
    new_test: np.ndarray
    new_classnames: Sequence[str] = NEW
    others: Sequence[Any] = ()


def federation(
    world: CheckWorld, trainer: type[Trainer], setup: Setup, site: int | None = None
) -> Federation:
    """Return a federation that measures; of one site, if it is given."""
    splits = list(world.splits)
    if site is not None:
        away = tuple(c for c, s in enumerate(SITES) if s != site)
        none = np.zeros(0, np.int64)
        for c in away:
            splits[c] = IndexSplit(none, none, none)
        setup = replace(setup, splits=splits, poisoned=away)
    fed = world.federation(trainer, replace(setup, engine=LocalEngine(CHUNK, SITES)))
    own = [c for c, s in enumerate(SITES) if site in (None, s)]
    test = np.concatenate([world.splits[c].test for c in range(len(SITES))])
    tests = Tests(world.labels.numpy(), splits, test, test[: len(BASE)])
    fed.meter = ClientMeter(
        fed.model, fed.trainer, fed.batcher.source,  # type: ignore[attr-defined]
        tests, batch_size=BATCH,
    )
    assert own
    return fed


def measured(fed: Federation) -> list[list[Row]]:
    """Return a list that gets everybody's numbers after each round of ``fed``."""
    out: list[list[Row]] = []

    def hear(event: Event) -> None:
        if isinstance(event, RoundFinished):
            out.append(event.rows(range(len(SITES)), ALL))

    fed.subscribers.append(hear)
    return out


class OverSockets(InProcess):
    """Sites of this process, each behind a Unix socket; asked in the reverse order of the names."""

    def __init__(self) -> None:
        super().__init__({})
        self._folder = Path(tempfile.mkdtemp(prefix="fedvlm-"))
        self._lines: dict[str, SiteSockets] = {}
        self._doors: list[socket.socket] = []
        weakref.finalize(self, _hang_up, self._folder, self._lines, self._doors)

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        out: dict[str, bytes | str] = {}
        for name in sorted(frames, reverse=True):
            out[name] = self._line(name).ask({"site0": frames[name]}, seconds)["site0"]
        return out

    def _line(self, name: str) -> SiteSockets:
        """Return the connection to a site; its socket is served from now on."""
        if name not in self._lines:
            path = self._folder / str(len(self._lines))
            answers = weakref.proxy(self)  # a site may be taken down and put up again
            door = listen(path)
            threading.Thread(target=_serve, daemon=True, args=(
                door, lambda frame: answers.answers[name](frame))).start()
            self._doors.append(door)
            self._lines[name] = SiteSockets([path])
            self._lines[name].open(10)
        return self._lines[name]


def _serve(door: socket.socket, answer: Answer) -> None:
    with contextlib.suppress(OSError):
        serve(door, b"", answer, lambda words: None)


def _hang_up(folder: Path, lines: Mapping[str, SiteSockets], doors: list[socket.socket]) -> None:
    for line in lines.values():
        line.close()
    for door in doors:
        with contextlib.suppress(OSError):
            door.shutdown(socket.SHUT_RDWR)  # which wakes its thread
        door.close()
    shutil.rmtree(folder, ignore_errors=True)


class Tapped(OverSockets):
    """A carrier that keeps all that it carries."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[bytes] = []

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        out = super().ask(frames, seconds)
        self.frames += [*frames.values(), *(v for v in out.values() if isinstance(v, bytes))]
        return out


@dataclass
class Grid:
    """Two sites and a server, whose parts may be taken down and put up again."""

    world: CheckWorld
    trainer: type[Trainer]
    folder: Path
    setup: Setup = field(default_factory=lambda: Setup(rounds=2))
    policy: Policy = field(default_factory=lambda: Policy(wait=0))
    kind: type[RemoteEngine] = RemoteEngine
    secrets: Mapping[str, bytes] = field(default_factory=dict)  # by site, as after a restart
    carrier: InProcess = field(init=False)
    sites: dict[str, Site] = field(init=False)
    said: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Put the sites up."""
        self.carrier = Tapped()
        self.restart()

    def restart(self) -> None:
        """Put the sites up anew, from what is on their disks."""
        self.sites = {
            name: Site(
                federation(self.world, self.trainer, self.setup, s),
                [c for c, at in enumerate(SITES) if at == s], self.folder / name, CONFIG,
                say=self.logs.append, secret=self.secrets.get(name, b""),
            ) for s, name in enumerate(NAMES)
        }
        self.carrier.answers = {name: site.answer for name, site in self.sites.items()}

    def server(
        self, before: Mapping[str, Mapping[str, Any]] = {}
    ) -> tuple[Federation, RemoteEngine]:
        """Return a server that knows counts only, and has met its sites (``RemoteEngine.meet``)."""
        fed = federation(self.world, self.trainer, self.setup)
        fed.meter = None
        fed.batcher = Absent(fed.roster, BATCH, "the server")
        engine = self.kind(
            self.carrier, CONFIG, CHUNK, self.policy, RUN, say=self.said.append
        )
        engine.meet(len(SITES), 0, before)
        engine.join(fed)
        return fed, engine

    def clients(self, versions: dict[int, int]) -> dict[int, State]:
        """Return the clients' states as they lie on the sites' disks."""
        out: dict[int, State] = {}
        for name, site in self.sites.items():
            fed = site.federation
            fed.clients.store = SiteStore(self.folder / name, RUN, torch.device("cpu"))
            ids = [c for c in site.clients if versions.get(c)]
            out |= fed.clients.read(ids, versions)
        return out

    def private(self, slots: Sequence[str] = ()) -> dict[str, Tensor]:
        """Return all that has to stay at the sites, by what it is.

        The personal tensors of all versions on their disks, all tensors of ``slots``, and the
        clients' images: for training, validation and test.
        """
        out: dict[str, Tensor] = {}
        for name, site in self.sites.items():
            store = SiteStore(self.folder / name, RUN, torch.device("cpu"))
            mine = set(site.federation.groups.personal)
            for client, version in store.rows():
                ((_, state),) = store.get([client], [version])
                out |= {
                    f"{slot}/{leaf} of client {client}, round {version}": v
                    for slot, tree in state.items() for leaf, v in tree.items()
                    if leaf in mine or slot in slots
                }
        for c, split in enumerate(self.world.splits):
            for part, images in (("train", split.train), ("val", split.val), ("test", split.test)):
                for i in images.tolist():
                    out[f"pixels of {part} image {i} of client {c}"] = self.world.pixels[i]
                    out[f"features of {part} image {i} of client {c}"] = self.world.features[i]
        return out

    def whole(self, fed: Federation, state: FedState) -> WholeState:
        """Return the state with the clients' tensors of the sites."""
        server = fed.read(state)
        return replace(server, clients=server.clients | self.clients(state.versions))


def local(
    world: CheckWorld, trainer: type[Trainer], setup: Setup
) -> tuple[WholeState, list[list[Row]]]:
    """Return the end of the same run in this process, and its numbers."""
    fed = federation(world, trainer, setup)
    rows = measured(fed)
    return copy_fed(fed.read(fed.run())), rows


def leaks(private: Mapping[str, Tensor], frames: Sequence[bytes]) -> list[str]:
    """Return which private values lie in a frame, byte by byte, also in lower precision.

    Constant tensors (a mask of ones, a start of zeros) tell nothing and are passed over, and so are
    few numbers of two bytes each, which could be anything. In another order they are not seen.
    """
    everything = b"\n".join(frames)
    return [
        what for what, v in private.items() if v.numel() > 3 and v.double().std() > 0
        and any(raw(v.to(kind)) in everything for kind in _kinds(v))
    ]


def raw(v: Tensor) -> bytes:
    """Return the bytes of a tensor as they lie in a frame."""
    return v.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _kinds(v: Tensor) -> set[torch.dtype]:
    halves = {torch.float16, torch.bfloat16} if v.numel() > 7 else set()
    return {v.dtype, torch.float32} | halves
