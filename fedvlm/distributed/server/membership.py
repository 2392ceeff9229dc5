"""The sites of a run: whose clients they have, what they told, and which are asked no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedvlm.core.errors import ConfigError
from fedvlm.core.spelling import site_words
from fedvlm.distributed.schema import by_number
from fedvlm.federation.server import Roster

GONE = "0" * 64  # digest of the data of a site that was forgotten (``fedvlm forget``)


@dataclass
class Membership:
    """Where each client is, and which sites count.

    Attributes:
        home: the site of each client.
        counts: what the sites said of their clients' images.
        met, data: what each site said that it is; digests of its data.
        before: digest of the data of each client's site when the run began, where it goes on.
        keys: what each site proved that it has (``Carrier.key``); of sites without one nothing.
        bound: the key of the site that brought each client when the run began.
        shut: sites that take no part in this session: they did not fit when they were met.
        sites: each client's site as a number, in the carrier's order.
        refusals: rounds in a row in which something of a site was refused.
        excluded: sites that are asked no more.
        readmitted: clients that the coordinator took in again (``readmission``).
    """

    home: dict[int, str] = field(default_factory=dict)
    counts: dict[int, dict[str, Any]] = field(default_factory=dict)
    met: dict[str, dict[str, str]] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    before: dict[int, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    bound: dict[int, str] = field(default_factory=dict)
    shut: set[str] = field(default_factory=set)
    sites: Sequence[int] = ()
    refusals: Counter[str] = field(default_factory=Counter)
    excluded: set[str] = field(default_factory=set)
    readmitted: list[dict[str, Any]] = field(default_factory=list)

    # ---- handshake ---------------------------------------------------------------------------
    def welcome(self, site: str, values: Mapping[str, Any], key: str = "") -> None:
        """Take a site in by the values of its ``welcome``; one that does not fit leaves no trace.

        Args:
            key: what it proved that it has.

        Raises:
            ConfigError: a client was another site's when the run began, by their keys; another site
                has one of its clients; or its data are not those of before.
        """
        clients = by_number(values["clients"])
        for client in clients:
            if self.bound.get(client, key) != key:
                raise ConfigError(f"{site_words(site)} says that it has client {client}, which a "
                                  "site with another key brought when this run began (if that site "
                                  "made a new key, delete sites/met.json of the run's folder)")
            if client in self.home:
                raise ConfigError(f"sites {self.home[client]} and {site} both have client {client}")
        if any(self.before.get(c) == GONE for c in clients):
            raise ConfigError(f"{site_words(site)} has client {min(clients)}, which this run has "
                              "forgotten: end its process (fedvlm site stop), or remove the site "
                              "(fedvlm federation dismiss)")
        if any(self.before.get(c, values["data"]) != values["data"] for c in clients):
            raise _other_data(site)
        self.met[site], self.data[site] = dict(values["facts"]), values["data"]
        self.home |= dict.fromkeys(clients, site)
        self.counts |= clients
        if key:
            self.keys[site] = key

    def count_absent(
        self, before: Mapping[str, Mapping[str, Any]], say: Callable[[str], None]
    ) -> None:
        """Count the clients of sites that are away as they were counted before."""
        for name, told in before.items():
            counts, site = by_number(told["clients"]), name
            if counts.keys() & self.home.keys():
                continue
            while site in self.met or site in self.home.values():  # an address of that number is
                site += " (away)"  # another's now
            self.home |= dict.fromkeys(counts, site)
            self.counts |= counts
            self.data[site] = str(told["data"])
            if told.get("key"):
                self.keys[site] = str(told["key"])
            what = "are forgotten" if told["data"] == GONE else "count as before"
            say(f"{site} is not connected: clients {sorted(counts)[:8]} {what}")

    def number(
        self, clients: int, before: Mapping[str, Mapping[str, Any]], names: Sequence[str]
    ) -> None:
        """Number the sites: sums have the order of the run's beginning, always.

        Args:
            before: what the sites told when the run began.
            names: of the carrier, in its order.

        Raises:
            ConfigError: sites have clients that the run does not have.
        """
        beyond = sorted(c for c in self.home if c >= clients)
        if beyond:
            raise ConfigError(
                f"sites have clients {beyond[:8]}, and FED.CLIENTS {clients} are 0 to {clients - 1}"
            )
        first = [self.home[int(c)] for told in before.values() for c in told["clients"]
                 if int(c) in self.home]
        order = {site: at for at, site in
                 enumerate(dict.fromkeys([*first, *names, *self.home.values()]))}
        self.sites = tuple(order[self.home[c]] for c in range(clients))

    def welcomes(self) -> dict[str, dict[str, Any]]:
        """Return what each site told of itself, as JSON values (for a later start of the run)."""
        at = dict(enumerate(self.sites))
        order = sorted(self.home, key=lambda c: at.get(c, 0))
        out: dict[str, dict[str, Any]] = {
            site: {"data": self.data[site], "clients": {
                str(c): self.counts[c] for c, home in sorted(self.home.items()) if home == site
            }} for site in dict.fromkeys(self.home[c] for c in order)
        }
        for site in out.keys() & self.keys.keys():
            out[site]["key"] = self.keys[site]
        return out

    def widest(self) -> int:
        """Return of how many classes a client at most has told."""
        return max((len(counts["classes"]) for counts in self.counts.values()), default=0)

    def roster(self) -> Roster:
        """Return what the sites say of their clients: counts, and nothing else."""
        ids = range(len(self.sites))
        train, val, test = (
            np.array([self.counts[c][n] for c in ids], np.int64) for n in ("train", "val", "test")
        )
        classes = np.zeros((len(ids), max(len(self.counts[c]["classes"]) for c in ids)), np.int64)
        for row, c in zip(classes, ids, strict=True):  # a site counts up to its last class
            row[: len(self.counts[c]["classes"])] = self.counts[c]["classes"]
        return Roster(train, val, test, classes, np.asarray(self.sites, np.int64))

    # ---- who counts --------------------------------------------------------------------------
    def askable(self, clients: Iterable[int]) -> list[int]:
        """Return those of some clients whose sites are not excluded."""
        return [c for c in clients if self.home[c] not in self.excluded | self.shut]

    def judge(self, asked: Iterable[int], guilty: Collection[str], most: int) -> list[str]:
        """Count a round's refusals; return the sites that are excluded from now on.

        Args:
            asked: clients of the round.
            guilty: sites of which something was refused.
            most: rounds in a row after which a site is asked no more.
        """
        out = []
        for site in sorted({self.home[c] for c in asked} - self.excluded):
            self.refusals[site] = self.refusals[site] + 1 if site in guilty else 0
            if self.refusals[site] >= most:
                self.excluded.add(site)
                out.append(site)
        return out

    def way_back(self, missing: Iterable[int]) -> str:
        """Return what helps where sites of some missing clients are excluded; or nothing."""
        gone = sorted(c for c in missing if self.home[c] in self.excluded)
        return f", after fedvlm readmit RUN {gone[0]}" if gone else ""

    def origin(self, clients: Sequence[int]) -> str:
        """Return the sites of some clients, as a clause."""
        each = {site: [c for c in clients if self.home[c] == site]
                for site in dict.fromkeys(self.home[c] for c in clients)}
        return " and ".join(
            f"{site} (clients {', '.join(map(str, ids[:8]))}{', ...' if ids[8:] else ''})"
            for site, ids in each.items()
        )

    # ---- memory ------------------------------------------------------------------------------
    def memory(self) -> dict[str, Any]:
        """Return what a checkpoint has to keep of the sites, as JSON values."""
        homes = {site: [c for c, home in sorted(self.home.items()) if home == site]
                 for site in self.data}
        return {
            "excluded": sorted(self.excluded), "refusals": dict(self.refusals),
            "data": dict(self.data), "clients": homes, "readmitted": list(self.readmitted),
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint kept; sites may have been met, or come later.

        A site is known again by its clients: carriers may have given it another name.

        Raises:
            ConfigError: a site has other data than before.
        """
        homes = memory.get("clients") or {
            site: [c for c, home in self.home.items() if home == site]
            for site in memory.get("data", {})
        }
        self.remember(memory.get("data", {}), homes)
        for site in self.met:
            ours = [c for c, home in self.home.items() if home == site]
            if any(self.before.get(c, self.data[site]) != self.data[site] for c in ours):
                raise _other_data(site)
        now = {site: self.home.get(ids[0], site) for site, ids in homes.items() if ids}
        self.excluded = {now.get(site, site) for site in memory.get("excluded", ())}
        self.refusals = Counter(
            {now.get(site, site): n for site, n in memory.get("refusals", {}).items()}
        )
        self.readmitted = list(memory.get("readmitted", ()))

    def remember(self, data: Mapping[str, str], homes: Mapping[str, Sequence[int]]) -> None:
        """Note which data the clients' sites had when the run began."""
        self.before |= {c: said for site, said in data.items() for c in homes.get(site, ())}


def _other_data(site: str) -> ConfigError:
    return ConfigError(f"{site_words(site)} has other data than when this run began: restore the "
                       "old data, or start a new run with another --tag")
