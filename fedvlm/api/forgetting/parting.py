"""A run over sites again without one of them, or without a part: what its coordinator asks.

The images are at the sites, so all sites do their rounds again, from the untrained start: they keep
their newest states only. They must have the data of the old run, by the digests that they told
then; a site of which a part leaves tells anew what it has. Clients that leave keep their numbers,
count nothing and are away from round 1, as in ``api.forget``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.core.files import read_json
from fedvlm.core.spelling import site_words
from fedvlm.data.datum import PARTS
from fedvlm.job.inputs import Parting
from fedvlm.job.sites.parties import PLACE, ask_sites, has_left, met_without, read_met, run_name
from fedvlm.runs.cells import runs_below
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.names import RESULTS

ADDRESSES = "FED.SITES_AT"
AT_SITE = "states of this run, at the site that leaves: its owner erases them (fedvlm site forget)"
SHORT = 12  # digits of a run's name, as in ``fedvlm site status``


@dataclass(frozen=True)
class Leaving:
    """What of some sites leaves a run.

    Attributes:
        words: what leaves, for the screen.
        unit: ``site``, ``client`` or ``images``.
        told: what these sites told as the run began, by name.
        now: what they tell without what leaves; a site that is not in it leaves whole.
    """

    words: str
    unit: str
    told: Mapping[str, Mapping[str, Any]]
    now: Mapping[str, Mapping[str, Any]]

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients that leave with all that they have."""
        stay = _clients(self.now)
        return tuple(sorted(int(c) for c in _clients(self.told) if c not in stay))

    @property
    def touched(self) -> tuple[int, ...]:
        """The clients of which a site tells other counts than before, or all of the sites."""
        before, stay = _clients(self.told), _clients(self.now)
        return tuple(sorted(map(int, [c for c in before if stay.get(c) != before[c]] or before)))

    @property
    def counts(self) -> dict[str, int]:
        """How many images leave, by part, as the sites tell them."""
        before, after = (_clients(told).values() for told in (self.told, self.now))
        return {p: sum(int(n[p]) for n in before) - sum(int(n[p]) for n in after) for p in PARTS}


def _clients(told: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the counts of all clients of some sites."""
    return {c: counts for one in told.values() for c, counts in one["clients"].items()}


def leaving(path: Path, cfg: CfgNode, client: str, images: str) -> Leaving:
    """Return what the words mean: a site, its client, or the images that sites took out.

    Args:
        client: a site's name, or a client's number; images: sites' names, with commas between.

    Raises:
        ConfigError: they mean nothing, nobody would be left, or a site has what is to leave.
        DataError: what is kept of the sites is damaged.
    """
    met = read_met(path)
    if not met:
        raise ConfigError(f"'{path}': nothing is kept of what its sites told ({PLACE}/), so nobody "
                          "knows whose clients these are: start the run again without the site, "
                          "with another --tag")
    home = {number: site for site, told in met.items() for number in told["clients"]}
    flag, sites = "--client" if client else "--images", list[str]()
    for word in [client] if client else [w.strip() for w in images.split(",")]:
        site = word if word in met else home.get(word, "") if client else ""
        if not site:
            raise ConfigError(f"{flag} {word}: the run has the sites {', '.join(met)}, with "
                              f"clients 0 to {len(home) - 1}{did_you_mean(word, met)}")
        if has_left(met[site]):
            raise ConfigError(f"{flag} {word}: it was forgotten before")
        sites.append(site)
    told = {site: met[site] for site in sites}
    names = ", ".join(told)
    now, words, unit = dict[str, Any](), site_words(names), "site"
    if images or (client != names and len(told[names]["clients"]) > 1):
        now = _without_parts(cfg, told, client)
        words, unit = (f"client {client} of {names}", "client") if client else (
            f"what {names} took out of the lists", "images")
    if not any(counts["train"] for counts in _clients(
            {site: one for site, one in met.items() if site not in told} | now).values()):
        raise ConfigError(f"without {names} no site is left that trained: delete the run instead, "
                          f"'{path}'")
    return Leaving(words, unit, told, now)


def _without_parts(
    cfg: CfgNode, told: Mapping[str, Mapping[str, Any]], client: str
) -> dict[str, Any]:
    """Return what sites tell that took something out of their lists."""
    act = f"fedvlm site forget site.yaml {f'--client {client}' if client else '--images LIST'}"
    out = ask_sites(cfg, list(told))
    for site, now in out.items():
        then = told[site]
        if now["data"] == then["data"] or client in now["clients"]:
            what = f"client {client}" if client else "all its images"
            raise ConfigError(f"{site} still has {what}: its owner first takes out what is to be "
                              f"forgotten ({act}) and serves the site again")
        more = [c for c, counts in now["clients"].items() if c not in then["clients"]
                or any(counts[p] > then["clients"][c][p] for p in PARTS)]
        if more or now.get("key", "") != then.get("key", now.get("key", "")):
            raise ConfigError(f"{site} is not the site of this run without some images: " + (
                f"client {min(more)} has more than then" if more
                else "it proves another key than then"))
    return out


def others_at_sites(path: Path, left: Leaving) -> list[tuple[Path, str]]:
    """Return where states of the old run still lie: they were trained with what leaves, too."""
    run = run_name(path)[:SHORT]
    return [(Path(site), AT_SITE) for site in left.told if site not in left.now] + [
        (Path(site), f"newest states of run {run}, at a site that stays: its owner erases them "
                     f"(fedvlm site forget site.yaml {run})")
        for site, told in read_met(path).items() if site not in left.told and not has_left(told)]


def runs_with(data: Collection[str], path: Path, output: Path) -> list[tuple[Path, str]]:
    """Return the other runs below ``output`` with a site of these data, by digest."""
    found = []
    for one in runs_below(output):
        try:
            met = read_met(one) if one != path else {}
        except DataError:
            found.append((one, "a run whose sites cannot be read: look at it yourself"))
            continue
        if any(told["data"] in data for told in met.values()):
            found.append((one, "another run with this site"))
    return found


def parting(
    path: Path, run: FinishedRun, cfg: CfgNode, left: Leaving, counts: Mapping[str, int]
) -> tuple[Parting, dict[str, str]]:
    """Return what the new run is built of, and its other values of config keys.

    Args:
        counts: images that leave, by part.
    """
    met, gone = met_without(path, left.told, left.now)
    names = sorted(map(str, left.clients))
    if left.now:  # nobody here knows the images: the sites' owners can make both digests
        names = [told["data"] for s in left.told for told in (left.told[s], left.now[s])]
    digest = hashlib.sha256("\n".join([run.digest, *names]).encode()).hexdigest()
    forgotten = {
        "unit": left.unit, "clients": gone, "images": dict(counts), "digest": digest,
        "of": run.digest,
        "of_results": (read_json(path / RESULTS) or {}).get("seal", ""), "tests": [],
    }
    words = [w for w in str(cfg.FED.SITES_AT).split(",") if w.strip()]
    stay = [w for at, w in enumerate(words) if left.now or f"site{at}" not in left.told]
    what = next(iter(left.told)) if len(left.told) == 1 else f"{len(left.told)}-sites"
    what = f"without-part-of-{what}-{digest[:8]}" if left.now else f"without-{what}"
    tag = "-".join(filter(None, [str(cfg.TAG), what.replace(" ", "-")]))
    return Parting(met, forgotten), {ADDRESSES: ",".join(stay), "TAG": tag}
