"""Who computes the clients of a run: the words of ``FED.ENGINE``."""

from __future__ import annotations

from yacs.config import CfgNode

LOCAL, WORKERS, SITES, FLOWER = "local", "workers", "sites", "flower"
ENGINES = (LOCAL, WORKERS, SITES, FLOWER)
OF_PARTIES = (SITES,)  # the clients' images are at parties of their own; the driver has none


def of_parties(cfg: CfgNode) -> bool:
    """Say whether the clients of a run are at parties with data of their own."""
    return cfg.FED.ENGINE in OF_PARTIES
