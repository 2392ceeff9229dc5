"""Clients that a coordinator takes in again: their site was excluded, or their states are gone.

What is wished for stands in a file of the run's folder, each wish with a name of its own. The run
does it once, when it goes on; its checkpoints name the wishes that were done.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvlm.core import files
from fedvlm.core.spelling import site_words
from fedvlm.distributed.schema import each, flag, hexes, integer, record
from fedvlm.distributed.server.remote import RemoteEngine
from fedvlm.federation.reliability.unreliable import VOID
from fedvlm.federation.rounds import FedState

NAME = "readmit.json"
_WISHES = each(record({"id": hexes, "client": integer(), "anew": flag}))
Wish = Mapping[str, Any]  # ``id``, ``client``, ``anew``


def read_wishes(folder: Path) -> list[Wish]:
    """Return what was wished for in a run's folder of its sites; nothing where there is no file.

    Raises:
        DataError: the file is damaged.
    """
    mend = "delete it, and run fedvlm readmit again"
    return list(files.read_valid_json(folder / NAME, _WISHES, mend) or ())


def add_wishes(folder: Path, clients: Sequence[int], anew: bool) -> None:
    """Wish for clients, from the next time on that the run goes on.

    Raises:
        DataError: the file is damaged, or cannot be written.
    """
    more = [{"id": secrets.token_hex(8), "client": c, "anew": anew} for c in clients]
    files.write_json(folder / NAME, [*read_wishes(folder), *more])


def readmit(engine: RemoteEngine, wishes: Sequence[Wish], state: FedState) -> FedState:
    """Take clients in again; return the state that the run goes on from.

    Their site is asked again, and so are all its clients: those count as readmitted, too. A wish
    for a client whose site is not excluded, and that is not to start anew, changes nothing: it is
    said, and counts as done (``VOID``). A client that starts ``anew`` does so as one that never
    worked: from the initial personal tensors and what the server sends today; what the server holds
    for it is forgotten. A wish that the run's checkpoint has counts no more.

    Args:
        state: of the checkpoint.
    """
    members = engine.members
    done = {one["id"] for one in members.readmitted}
    versions, held = dict(state.versions), dict(state.held)
    new = [one for one in wishes if one["id"] not in done]
    named, shut = {int(one["client"]) for one in new}, set(members.excluded)
    for wish in new:
        client, how = int(wish["client"]), "from its accepted state"
        site = members.home.get(client, "")
        if not wish["anew"] and site not in shut:
            members.readmitted.append({**wish, "after": state.round, VOID: True})
            engine.say(f"client {client} is not readmitted: {site_words(site)} is not excluded "
                       "(--anew is for a state that is gone)")
            continue
        if wish["anew"]:
            how = "from the start, as a new client"
            versions.pop(client, None)
            held.pop(client, None)
        others = sorted(c for c, home in members.home.items()
                        if home == site and c not in named and site in members.excluded)
        members.excluded.discard(site)
        members.refusals[site] = 0
        members.readmitted.append({**wish, "after": state.round})
        engine.say(
            f"after round {state.round}: client {client} ({site}) is readmitted and goes on {how}"
        )
        for other in others:
            members.readmitted.append(
                {"id": wish["id"], "client": other, "anew": False, "after": state.round}
            )
            engine.say(f"after round {state.round}: client {other} ({site}) is readmitted with it "
                       "and goes on from its accepted state")
    return replace(state, versions=versions, held=held)
