"""The states of a run whose clients workers computed, where they lie in the run's folder."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError, DataError, FedvlmError
from fedvlm.core.files import user_path
from fedvlm.core.rows.store import AWAY, RowStore
from fedvlm.distributed.flower.place import FOLDER, read_place
from fedvlm.distributed.store import LostState, SiteStore, new_letters
from fedvlm.federation.plan import parse_sites
from fedvlm.federation.rounds import Federation, FedState

PLACE = "workers"  # in the run's folder
SITE = "site"  # the form of a state that lies at a site
NAME = "run"  # there, the file with the run's name at its workers or sites
RUN = re.compile(r"[0-9a-f]{64}")


def workers_rows(folder: Path, device: torch.device) -> SiteStore:
    """Return the rows that a run's workers wrote into its folder (``ConfigError``: elsewhere)."""
    runs = [p for p in (folder / PLACE).glob("*") if p.is_dir() and RUN.fullmatch(p.name)]
    if len(runs) != 1:
        raise ConfigError(
            f"the clients' states of '{folder}' are stored by its workers (folder --states): use "
            "the global model, or copy that folder to "
            f"'{folder / PLACE}'"
        )
    return SiteStore(runs[0].parent, runs[0].name, device, new_letters())


def site_rows(folder: Path, cfg: CfgNode, device: torch.device) -> dict[int, SiteStore]:
    """Return where the rows of a run's clients lie at the sites of a federation on this machine.

    Args:
        cfg: the run's; ``FED.FEDERATION`` is looked for from here.

    Returns:
        The store of each client; none of a run without a federation, or where it is not here.
    """
    try:
        run = (folder / PLACE / NAME).read_text(encoding="utf-8").strip()
        place = read_place(user_path(cfg.FED.FEDERATION or FOLDER))
    except (OSError, ValueError, FedvlmError):
        return {}
    layout = parse_sites(cfg.FED.SITES, int(cfg.FED.CLIENTS))
    homes = [place.states(site.name) for site in place.sites]
    if max(layout, default=-1) >= len(homes) or not RUN.fullmatch(run):
        return {}
    stores = {home: SiteStore(home, run, device) for home in homes if (home / run).is_dir()}
    return {c: stores[homes[at]] for c, at in enumerate(layout) if homes[at] in stores}


def stands_for_another(store: RowStore, versions: dict[int, int]) -> bool:
    """Say whether rows only stand for states that workers have."""
    for client, version in versions.items():
        return any(slot.startswith(AWAY) for slot, _ in store.form(client, version))
    return False


def check_rows(folder: Path, federation: Federation, state: FedState) -> None:
    """Check the clients' rows of workers, of which no checkpoint has hashes (``DataError``)."""
    store = federation.clients.store
    if isinstance(store, SiteStore):
        try:
            store.require(state.versions)
        except LostState as error:
            raise DataError(f"'{folder / PLACE}': {error}") from error


def take_workers_rows(folder: Path, federation: Federation, state: FedState) -> None:
    """Let a federation read its clients' rows where workers wrote them, if they did.

    A folder that lacks them goes on to say so when somebody asks for a client.
    """
    if stands_for_another(federation.clients.store, state.versions):
        try:
            federation.clients.store = workers_rows(folder, federation.model.device)
        except ConfigError:
            return
