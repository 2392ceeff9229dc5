"""A worker of a pool: a site that has all clients, and shares their states with its peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedvlm.distributed.facts import likeness
from fedvlm.distributed.pool.store import PoolStore, new_letters
from fedvlm.distributed.schema import numbered
from fedvlm.distributed.site import Site
from fedvlm.distributed.wire import Frame
from fedvlm.federation.rounds import Federation


class PoolSite(Site):
    """See the module; a request names whole chunks of the driver's plan.

    Chunks are cut anew from the clients of a request. As the plan sorts clients and cuts full
    chunks first, whole chunks come out of it as they went in.

    Args:
        federation: the run.
        folder: for states, the same for all workers.
        config: as of ``Site``.
        beside: facts of the job, which its driver has, too (``job.sites.party.shared_facts``).
        say: hears what is for the worker's own log.
    """

    def __init__(
        self, federation: Federation, folder: Path, config: Mapping[str, Any],
        say: Callable[[str], None] = lambda words: None,
        beside: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(federation, range(federation.plan.clients), folder, config, say=say)
        self.facts |= dict(beside or {})
        self.like = likeness(self.config, self.facts)
        self.letters = new_letters()
        self._forms: dict[int, str] = {}  # of the states that the last work made

    def _work(self, frame: Frame) -> Frame:
        """See ``Site``; each part says which form its clients' new states have."""
        done = super()._work(frame)
        for part in done.values["parts"]:
            part["form"] = self._forms[part["clients"][0]]
        return done

    def _enter(self, frame: Frame, down: int, up: int, seconds: float, failed: bool) -> None:
        """Keep no account: a simulation has no owners, and workers would share it."""

    def _forget(self, frame: Frame) -> Frame:
        """Delete states older than those named: no other worker works meanwhile."""
        self._like(frame)
        self._store(frame.values["run"]).forget(numbered(frame.values["keep"]))
        return Frame("forgot", {"nonce": frame.values["nonce"]})

    def _store(self, run: str) -> PoolStore:
        device = self.federation.model.device
        return PoolStore(self.folder, run, device, self.letters)

    @contextmanager
    def _states(self, run: str, accepted: Mapping[int, int]) -> Iterator[PoolStore]:
        """Hold the run's states, with those that the driver accepted among them."""
        clients = self.federation.clients
        before, store = clients.store, self._store(run)
        for words in store.damage:
            self.say(words)
        store.require(accepted)
        clients.store = store
        try:
            yield store
            ids = sorted(store._ids)
            forms = clients.forms(ids, store._ids, {c: {} for c in ids})
            self._forms = dict(zip(ids, forms, strict=True))
        finally:
            clients.store = before
