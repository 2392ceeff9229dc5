"""Who computes the clients of a run: the words of ``FED.ENGINE``, each a module of an engine."""

from __future__ import annotations

from yacs.config import CfgNode

from fedvlm.config.option import Option, Schema
from fedvlm.core.plugins import Plugins

LOCAL, WORKERS, SITES, FLOWER = "local", "workers", "sites", "flower"
ENGINES = Plugins("fedvlm.job.engines", "ENGINE", "engine", (LOCAL, WORKERS, SITES, FLOWER))
OF_PARTIES = (SITES,)  # the clients' images are at parties of their own; the driver has none


def of_parties(cfg: CfgNode) -> bool:
    """Say whether the clients of a run are at parties with data of their own."""
    return getattr(cfg.FED, "ENGINE", LOCAL) in OF_PARTIES


ENDED = {  # keys of 0.1: what takes their place
    "FED.WORKERS_AT": "ended with 0.2: one run works on one machine (--workers N); spread the runs "
                      "of a sweep over nodes by SLURM (docs/sweeps.md), and reach sites on other "
                      "machines by Flower (docs/deployment.md)",
    "FED.TOKEN_FILE": "ended with 0.2: a site on this machine answers its own user alone, and "
                      "sites on other machines have keys (docs/deployment.md)",
}


def engine_options() -> Schema:
    """Return what ``docs/workers.md`` and ``docs/deployment.md`` explain."""
    return {
        "FED.ENGINE": Option(
            LOCAL, "where clients are computed: this process, worker processes, sites with their "
            "own data, or sites of a federation on Flower; results are "
            "bit-identical", choices=ENGINES.names(),
            neutral=LOCAL, aliases={"flower-sim": WORKERS},  # of 0.1, by the same workers
        ),
        "FED.WORKERS": Option(
            0, "number of worker processes; 0: one per GPU, or per group of CPU "
            "cores", low=0, high=1024, neutral=0,
        ),
        "FED.FEDERATION": Option(
            "", "folder made by fedvlm federation up, with the sites of the clients "
                "(FED.ENGINE flower: default federation; sites: instead of "
                "FED.SITES_AT)", neutral="",
        ),
        "FED.SITES_AT": Option(
            "", "sites on this machine (fedvlm site serve site.yaml --listen PATH): paths of "
            "their sockets, separated by commas", neutral="",
        ),
        "FED.SITE_FILE": Option(
            "", "the coordinator's site.json: class names and optional public test "
                "images", neutral=""
        ),
        "FED.ASK.REACH": Option(
            300.0, "seconds that a run waits at its start for sites with their own data", low=0,
            neutral=300.0,
        ),
        "FED.ASK.SECONDS": Option(
            600.0, "seconds that a site may take to answer, and that a worker may show no sign "
            "of life", low=1, neutral=600.0
        ),
        "FED.ASK.RETRIES": Option(
            2, "how often a site that did not answer is asked again", low=0, neutral=2
        ),
        "FED.ASK.WAIT": Option(20.0, "seconds before that", low=0, neutral=20.0),
        "FED.ASK.REFUSALS": Option(
            3, "consecutive rounds with refused updates after which a site is excluded", low=1,
            neutral=3,
        ),
        "FED.ASK.MAX_NORM": Option(
            0.0, "updates of a site's client with a larger norm are refused; 0: no limit",
            low=0, neutral=0.0,
        ),
    }
