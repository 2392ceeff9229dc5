"""Parties with data of their own compute the clients (``FED.ENGINE sites``)."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlm.console.screen import progress
from fedvlm.distributed.server.baselines import site_baselines
from fedvlm.federation.groups import Releases
from fedvlm.federation.rounds import FedState
from fedvlm.job.build import Built
from fedvlm.job.engines.base import ClientSide, Tell
from fedvlm.job.inputs import Inputs, Parting
from fedvlm.job.sites.parties import Parties, check_sites, meet_parties
from fedvlm.runs.folder import RunFolder

ENGINE = "sites"


class AtParties(ClientSide):
    """Sites of parties; see ``ClientSide``."""

    parties: Parties
    built: Built

    def check(self, inputs: Inputs | None) -> None:
        """See ``ClientSide.check``."""
        check_sites(self.cfg)

    @contextlib.contextmanager
    def gather(self, path: Path, inputs: Inputs | None) -> Iterator[Inputs | None]:
        """See ``ClientSide.gather``: the sites are met, since counts come from them."""
        progress("meeting the sites")
        without = inputs if isinstance(inputs, Parting) else None
        with meet_parties(self.cfg, path, without) as self.parties:
            yield self.parties.inputs

    @contextlib.contextmanager
    def connect(self, built: Built, folder: RunFolder, tell: Tell) -> Iterator[None]:
        """See ``ClientSide.connect``."""
        self.parties.employ(built, folder.path, tell)
        self.ask, self.built = self.parties.ask, built
        yield

    def baselines(self, clients: Sequence[int]) -> dict[str, dict[str, Any]] | None:
        """See ``ClientSide.baselines``: as far as the sites' owners allow it."""
        model, fed = self.built.model, self.built.federation
        return site_baselines(
            self.parties.engine, clients, model.embed_dim, len(model.classnames),
            fed.trainer.releases(fed.groups), self.built.backbone.has_text,
        )

    @property
    def sums(self) -> Mapping[str, int]:
        """See ``ClientSide.sums``."""
        return self.parties.engine.sums

    @property
    def counted(self) -> Mapping[str, Sequence[str]]:
        """See ``ClientSide.counted``; class counts are an empty list where they are withheld."""
        met = self.parties.engine.members.welcomes()
        return {site: [name for name in Releases.counts
                       if any(told[name] != [] for told in one["clients"].values())]
                for site, one in met.items()}

    @property
    def baselined(self) -> Collection[str]:
        """See ``ClientSide.baselined``."""
        return self.parties.engine.baselined

    def resume(self, state: FedState | None) -> FedState | None:
        """See ``ClientSide.resume``."""
        return self.parties.resume(state)
