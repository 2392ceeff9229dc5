"""A run over sites again without one of them, or without a part: what its coordinator asks.

The images are at the sites, so all sites do their rounds again, from the untrained start: they keep
their newest states only. They must have the data of the old run, by the digests that they told
then; a site of which a part leaves tells anew what it has. Clients that leave keep their numbers,
count nothing and are away from round 1, as in ``api.forget``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.data.datum import PARTS
from fedvlm.job.inputs import Parting
from fedvlm.job.sites.parties import PLACE, ask_site, has_left, met_without, read_met, run_name
from fedvlm.runs.cells import runs_below
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.identity import read_json
from fedvlm.runs.names import RESULTS

ADDRESSES = "FED.SITES_AT"
AT_SITE = "states of this run, at the site that leaves: its owner erases them (fedvlm site forget)"
SHORT = 12  # digits of a run's name, as in ``fedvlm site status``


@dataclass(frozen=True)
class Leaving:
    """What of a site leaves a run.

    Attributes:
        site: its name.
        words: what leaves, for the screen.
        unit: ``site``, ``client`` or ``images``.
        told: what the site told as the run began.
        now: what it tells without what leaves; None: all of it leaves.
    """

    site: str
    words: str
    unit: str
    told: Mapping[str, Any]
    now: Mapping[str, Any] | None = None

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients that leave with all that they have."""
        stay = self.now["clients"] if self.now else {}
        return tuple(sorted(int(c) for c in self.told["clients"] if c not in stay))

    @property
    def touched(self) -> tuple[int, ...]:
        """The clients of which the site tells other counts than before, or all of them."""
        stay = self.now["clients"] if self.now else {}
        ids = self.told["clients"]
        return tuple(sorted(map(int, [c for c in ids if stay.get(c) != ids[c]] or ids)))

    @property
    def counts(self) -> dict[str, int]:
        """How many images leave, by part, as the site tells them."""
        before, after = self.told["clients"], self.now["clients"] if self.now else {}
        return {p: sum(int(n[p]) for n in before.values()) - sum(int(n[p]) for n in after.values())
                for p in PARTS}


def leaving(path: Path, cfg: CfgNode, client: str, images: str) -> Leaving:
    """Return what the words mean: a site, its client, or the images that it took from its lists.

    Args:
        client: a site's name, or a client's number; images: a site's name.

    Raises:
        ConfigError: they mean nothing, nobody would be left, or the site has what is to leave.
        DataError: what is kept of the sites is damaged.
    """
    met, word = read_met(path), client or images
    if not met:
        raise ConfigError(f"'{path}': nothing is kept of what its sites told ({PLACE}/), so nobody "
                          "knows whose clients these are: start the run again without the site, "
                          "with another --tag")
    home = {number: site for site, told in met.items() for number in told["clients"]}
    site = word if word in met else home.get(word, "") if client else ""
    flag = "--client" if client else "--images"
    if not site:
        raise ConfigError(f"{flag} {word}: the run has the sites {', '.join(met)}, with clients "
                          f"0 to {len(home) - 1}{did_you_mean(word, met)}")
    told = met[site]
    if has_left(told):
        raise ConfigError(f"{flag} {word}: it was forgotten before")
    now, words, unit = None, f"site {site}", "site"
    if images or (word != site and len(told["clients"]) > 1):
        now = _without_part(cfg, site, told, client)
        words, unit = (f"client {client} of {site}", "client") if client else (
            f"what {site} took from its lists", "images")
    some = [t for name, t in met.items() if name != site] + ([now] if now else [])
    if not any(counts["train"] for t in some for counts in t["clients"].values()):
        raise ConfigError(f"without {site} no site is left that trained: delete the run instead, "
                          f"'{path}'")
    return Leaving(site, words, unit, told, now)


def _without_part(
    cfg: CfgNode, site: str, told: Mapping[str, Any], client: str
) -> Mapping[str, Any]:
    """Return what a site tells that took something from its lists.

    Raises:
        ConfigError: it took nothing, has more than before, or still has the client.
    """
    now = ask_site(cfg, site)
    act = f"fedvlm site forget site.yaml {f'--client {client}' if client else '--images LIST'}"
    if now["data"] == told["data"] or client in now["clients"]:
        raise ConfigError(f"{site} still has {f'client {client}' if client else 'all its images'}: "
                          f"its owner first takes out what is to be forgotten ({act}) and serves "
                          "the site again")
    strange = now["clients"].keys() - told["clients"].keys()
    more = [c for c, counts in now["clients"].items() if c not in strange
            and any(counts[p] > told["clients"][c][p] for p in PARTS)]
    if strange or more or now.get("key", "") != told.get("key", now.get("key", "")):
        raise ConfigError(f"{site} is not the site of this run without some images: " + (
            f"client {min([*strange, *more])} has more than then" if strange or more
            else "it proves another key than then"))
    return now


def others_at_sites(path: Path, left: Leaving) -> list[tuple[Path, str]]:
    """Return where states of the old run still lie: they were trained with what leaves, too."""
    run = run_name(path)[:SHORT]
    gone = [(Path(left.site), AT_SITE)] if left.now is None else []
    return gone + [
        (Path(site), f"newest states of run {run}, at a site that stays: its owner erases them "
                     f"(fedvlm site forget site.yaml {run})")
        for site, told in read_met(path).items() if site != left.site and not has_left(told)]


def runs_with(data: str, path: Path, output: Path) -> list[tuple[Path, str]]:
    """Return the other runs below ``output`` with a site of these data, by its digest.

    Args:
        path: the old run.
    """
    found = []
    for one in runs_below(output):
        try:
            met = read_met(one) if one != path else {}
        except DataError:
            found.append((one, "a run whose sites cannot be read: look at it yourself"))
            continue
        if any(told["data"] == data for told in met.values()):
            found.append((one, "another run with this site"))
    return found


def parting(
    path: Path, run: FinishedRun, cfg: CfgNode, left: Leaving, counts: Mapping[str, int]
) -> tuple[Parting, dict[str, str]]:
    """Return what the new run is built of, and its other values of config keys.

    Args:
        counts: images that leave, by part.
    """
    met, gone = met_without(path, left.site, left.now)
    names = [left.told["data"], left.now["data"]] if left.now else sorted(met[left.site]["clients"])
    forgotten = {
        "unit": left.unit, "clients": gone, "images": dict(counts),
        "digest": hashlib.sha256("\n".join([run.digest, *names]).encode()).hexdigest(),
        "of": run.digest,
        "of_results": (read_json(path / RESULTS) or {}).get("seal", ""), "tests": [],
    }
    words = [w for w in str(cfg.FED.SITES_AT).split(",") if w.strip()]
    stay = [w for at, w in enumerate(words) if left.now or f"site{at}" != left.site]
    what = f"without-part-of-{left.site}-{left.now['data'][:8]}" if left.now else \
        f"without-{left.site}"
    tag = "-".join(filter(None, [str(cfg.TAG), what.replace(" ", "-")]))
    return Parting(met, forgotten), {ADDRESSES: ",".join(stay), "TAG": tag}
