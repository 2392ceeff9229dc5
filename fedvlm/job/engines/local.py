"""The engine without other processes: this one computes the clients (``FED.ENGINE local``)."""

from __future__ import annotations

from fedvlm.job.engines.base import ClientSide

ENGINE = "local"


class Local(ClientSide):
    """This process; see ``ClientSide``."""
