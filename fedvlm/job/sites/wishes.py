"""What ``fedvlm readmit`` writes into a run's folder (``distributed.server``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedvlm.core.errors import ConfigError
from fedvlm.distributed.server.readmission import add_wishes
from fedvlm.job.sites.parties import PLACE, read_met
from fedvlm.runs import lock
from fedvlm.runs.identity import read_manifest
from fedvlm.runs.names import is_finished
from fedvlm.runs.private import read_private


def wish(path: Path, clients: Sequence[int], anew: bool) -> tuple[str, list[str]]:
    """Write down who is to be taken in again when a run goes on.

    Returns:
        The command that goes on, and the sites of the clients.

    Raises:
        ConfigError: the run has no sites, is finished or at work, or has no such client.
        DataError: a file of its folder is damaged.
    """
    homes = {int(c): site for site, told in read_met(path).items() for c in told["clients"]}
    if not homes:
        raise ConfigError(f"'{path}' is not a run over sites (--engine sites): no client was "
                          "excluded")
    if is_finished(path):
        raise ConfigError(f"'{path}' is finished: no round is left for readmitted clients")
    stray = [c for c in clients if c not in homes]
    if stray:
        raise ConfigError(f"'{path}' has no client {stray[0]}: it has {', '.join(map(str, homes))}")
    lock.refuse_busy(path)
    add_wishes(path / PLACE, list(dict.fromkeys(clients)), anew)
    sessions = read_private(path)["sessions"] or (read_manifest(path) or {}).get("sessions", [])
    command = sessions[-1]["command"] if sessions else "the command that began it"
    return str(command), sorted({homes[c] for c in clients})
