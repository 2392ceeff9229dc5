"""A worker of a pool: a site that has all clients, and shares their states with its peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedvlm.core.trees import Tree
from fedvlm.distributed.facts import likeness
from fedvlm.distributed.site import Site
from fedvlm.distributed.store import SiteStore, new_letters
from fedvlm.distributed.terms import Terms
from fedvlm.distributed.wire import Frame
from fedvlm.federation.rounds import Federation
from fedvlm.federation.server import Question


class PoolSite(Site):
    """See the module; a request names whole chunks of the driver's plan.

    Chunks are cut anew from the clients of a request. As the plan sorts clients and cuts full
    chunks first, whole chunks come out of it as they went in.

    Args:
        folder: for states, the same for all workers.
        beside: facts of the job, which its driver has, too (``job.sites.party.shared_facts``).
    """

    def __init__(
        self, federation: Federation, folder: Path, config: Mapping[str, Any],
        say: Callable[[str], None] = lambda words: None,
        beside: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            federation, range(federation.plan.clients), folder, config, say=say,
            terms=Terms(logits=True),  # a simulation: its images are the driver's, too
        )
        self.facts |= dict(beside or {})
        self.like = likeness(self.config, self.facts)
        self.letters = new_letters()
        self._forms: dict[int, str] = {}  # of the states that the last work made
        self._ops["personalize"] = self._personalize

    def _work(self, frame: Frame) -> Frame:
        """See ``Site``; each part says which form its clients' new states have."""
        done = super()._work(frame)
        for part in done.values["parts"]:
            part["form"] = self._forms[part["clients"][0]]
        return done

    def _enter(self, frame: Frame, down: int, up: int, seconds: float, failed: bool) -> None:
        """Keep no account: a simulation has no owners, and workers would share it."""

    def _personalize(self, frame: Frame) -> Frame:
        """Make personal models of whole chunks; those that need no images stay here."""
        fed, values = self.federation, frame.values
        accepted, downloads = self.addressed(frame)
        question = Question(values["round"], list(accepted), downloads, accepted, values["tune"])
        parts, trees = list[dict[str, Any]](), dict[str, Tree]()
        with self._states(values["run"], accepted):
            for clients, models, images in fed.bundles(question):
                form = fed.clients.forms(clients[:1], accepted, downloads)[0]
                trees[f"model/{len(parts)}"] = dict(models) if images or question.tune else {}
                parts.append({"clients": list(clients), "form": form, "images": images})
        return Frame("personalized", {
            "nonce": values["nonce"], "round": values["round"], "parts": parts,
        }, trees)

    @contextmanager
    def opened(self, run: str) -> Iterator[SiteStore]:
        """See ``Site``: without a lock, the workers share the folder."""
        yield SiteStore(self.folder, run, self.federation.model.device, self.letters)

    @contextmanager
    def _states(self, run: str, accepted: Mapping[int, int]) -> Iterator[SiteStore]:
        """See ``Site``; then note the forms of the states that were put."""
        with super()._states(run, accepted) as store:
            yield store
            clients, ids = self.federation.clients, sorted(store._ids)
            forms = clients.forms(ids, store._ids, {c: {} for c in ids})
            self._forms = dict(zip(ids, forms, strict=True))
