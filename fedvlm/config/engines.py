"""Who computes the clients of a run: the words of ``FED.ENGINE``, each a module of an engine."""

from __future__ import annotations

from yacs.config import CfgNode

from fedvlm.config.option import Option, Schema
from fedvlm.core.plugins import Plugins

LOCAL, WORKERS, SITES, FLOWER = "local", "workers", "sites", "flower"
FLOWER_SIM = "flower-sim"
ENGINES = Plugins(
    "fedvlm.job.engines", "ENGINE", "engine", (LOCAL, WORKERS, SITES, FLOWER, FLOWER_SIM)
)
OF_PARTIES = (SITES,)  # the clients' images are at parties of their own; the driver has none


def of_parties(cfg: CfgNode) -> bool:
    """Say whether the clients of a run are at parties with data of their own."""
    return getattr(cfg.FED, "ENGINE", LOCAL) in OF_PARTIES


def engine_options() -> Schema:
    """Return what ``docs/workers.md``, ``docs/flower.md`` and ``docs/deployment.md`` explain."""
    return {
        "FED.ENGINE": Option(
            LOCAL, "who computes the clients: this process, worker processes, sites with data of "
            "their own, or sites of a federation on Flower; moves no bit", choices=ENGINES.names(),
            neutral=LOCAL,
        ),
        "FED.WORKERS": Option(
            0, "worker processes to begin here; 0 is one per GPU, or per group of cores that the "
            "work can use", low=0, high=1024, neutral=0,
        ),
        "FED.WORKERS_AT": Option(
            "", "workers that were begun by fedvlm site serve: host:port,host:port, or unix:PATH",
            neutral="",
        ),
        "FED.FEDERATION": Option(
            "", "folder of fedvlm federation up, whose sites have the clients (FED.ENGINE flower: "
            "federation, if it is empty; sites: in the place of FED.SITES_AT)", neutral="",
        ),
        "FED.TOKEN_FILE": Option(
            "", "file with the secret of FED.WORKERS_AT or FED.SITES_AT", neutral=""
        ),
        "FED.SITES_AT": Option(
            "", "sites that their owners serve (fedvlm site serve site.yaml): host:port,..., or "
            "unix:PATH", neutral="",
        ),
        "FED.SITE_FILE": Option(
            "", "the coordinator's site.json: class names, perhaps public test images", neutral=""
        ),
        "FED.ASK.REACH": Option(
            300.0, "seconds that a run waits for sites with data of their own, as it begins", low=0,
            neutral=300.0,
        ),
        "FED.ASK.SECONDS": Option(
            600.0, "how long a site may take for an answer", low=1, neutral=600.0
        ),
        "FED.ASK.RETRIES": Option(
            2, "how often a site that did not answer is asked again", low=0, neutral=2
        ),
        "FED.ASK.WAIT": Option(20.0, "seconds before that", low=0, neutral=20.0),
        "FED.ASK.REFUSALS": Option(
            3, "rounds in a row with refused updates after which a site is asked no more", low=1,
            neutral=3,
        ),
        "FED.ASK.MAX_NORM": Option(
            0.0, "norm of an update of a site's client above which it is refused; 0 is no limit",
            low=0, neutral=0.0,
        ),
    }
