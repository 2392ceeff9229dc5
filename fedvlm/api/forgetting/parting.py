"""A run over sites again without one of them: what its coordinator asks of the others.

The images are at the sites, so the sites that stay do their rounds again, from the untrained start.
They must have the data of the old run, by the digests that they told then. The clients of the site
that leaves keep their numbers, count nothing and are away from round 1, as in ``api.forget``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.core.files import read_json
from fedvlm.data.datum import PARTS
from fedvlm.job.inputs import Parting
from fedvlm.job.sites.parties import PLACE, met_without, read_met
from fedvlm.runs.cells import runs_below
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.names import RESULTS

ADDRESSES = "FED.SITES_AT"
AT_SITE = "states of this run, at the site that leaves: its owner erases them (fedvlm site forget)"


def leaving_site(path: Path, word: str) -> tuple[str, Mapping[str, Any]]:
    """Return the site of a word, its name or its only client's number, and what it told.

    Raises:
        ConfigError: there is none, it has other clients too, or nobody would be left.
        DataError: what is kept of the sites is damaged.
    """
    met = read_met(path)
    if not met:
        raise ConfigError(f"'{path}': nothing is kept of what its sites told ({PLACE}/), so nobody "
                          "knows whose clients these are: start the run again without the site, "
                          "with another --tag")
    home = {client: site for site, told in met.items() for client in told["clients"]}
    site = word if word in met else home.get(word, "")
    if not site:
        raise ConfigError(f"--client {word}: the run has the sites {', '.join(met)}, with clients "
                          f"0 to {len(home) - 1}{did_you_mean(word, met)}")
    clients = sorted(map(int, met[site]["clients"]))
    if not any(met[site]["clients"][str(c)][p] for c in clients for p in PARTS):
        raise ConfigError(f"--client {word}: it was forgotten before")
    if word != site and len(clients) > 1:
        raise ConfigError(f"--client {word} is one of {len(clients)} clients of {site}: a whole "
                          f"site leaves (--client {site}); for less its owner makes a new "
                          "site.json, and the run is started again with another --tag")
    left = [t for name, told in met.items() if name != site for t in told["clients"].values()]
    if not any(counts["train"] for counts in left):
        raise ConfigError(f"without {site} no site is left that trained: delete the run instead, "
                          f"'{path}'")
    return site, met[site]


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
    path: Path, run: FinishedRun, cfg: CfgNode, site: str, counts: Mapping[str, int]
) -> tuple[Parting, dict[str, str]]:
    """Return what the new run is built of, and its other values of config keys.

    Args:
        counts: images that leave, by part.
    """
    met, gone = met_without(path, site)
    text = "\n".join([run.digest, *sorted(met[site]["clients"])])
    forgotten = {
        "unit": "site", "clients": gone, "images": dict(counts),
        "digest": hashlib.sha256(text.encode()).hexdigest(), "of": run.digest,
        "of_results": (read_json(path / RESULTS) or {}).get("seal", ""), "tests": [],
    }
    words = [w for w in str(cfg.FED.SITES_AT).split(",") if w.strip()]
    stay = [w for at, w in enumerate(words) if f"site{at}" != site]
    tag = "-".join(filter(None, [str(cfg.TAG), f"without-{site}".replace(" ", "-")]))
    return Parting(met, forgotten), {ADDRESSES: ",".join(stay), "TAG": tag}
