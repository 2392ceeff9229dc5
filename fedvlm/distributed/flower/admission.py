"""Sites on other machines: their keys are admitted, and dismissed; invitations for them."""

from __future__ import annotations

from dataclasses import replace

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, FedvlmError, unknown_word
from fedvlm.distributed.flower import commands, processes
from fedvlm.distributed.flower.commands import LINK
from fedvlm.distributed.flower.invitation import Invitation, PublicKey
from fedvlm.distributed.flower.network import invitation, register
from fedvlm.distributed.flower.place import Place, SitePlan

_USED = "already in use"  # what Flower says of a key that it had before


def admit(place: Place, key: PublicKey) -> tuple[Place, Invitation]:
    """Let a site on another machine take part; return what it has to be handed.

    Done again with the same key it says the same, with today's address and certificate.

    Raises:
        ConfigError: the federation listens on this machine only, another site has that name, or
            the key was dismissed.
        FedvlmError: the SuperLink refuses the key.
        DataError: the folder cannot be written.
    """
    if not place.listen:
        raise ConfigError(
            f"'{place.folder}' is reachable from this machine only; open it with fedvlm "
            f"federation up --listen HOST:PORT --federation {place.folder}"
        )
    path, line = place.public(key.name), f"{key.line} {key.name}\n"
    there = next((site for site in place.sites if site.name == key.name), None)
    if there and path.is_file() and path.read_text(encoding="utf-8") != line:
        raise ConfigError(
            f"a site '{key.name}' is admitted with another key: give this one another --name, or "
            f"first fedvlm federation dismiss {key.name}"
        )
    files.write_text(path, line)
    site = there or SitePlan(key.name, away=True)
    if processes.pid_of(place, LINK):  # else as it begins
        try:
            register(place, site)
        except FedvlmError as error:
            path.unlink()
            if _USED not in str(error):
                raise
            raise ConfigError(
                f"the key of '{key.name}' was dismissed, and the SuperLink takes no key twice: the "
                "site makes another one (fedvlm site key SITE.YAML --anew)"
            ) from error
    if not there:
        place = replace(place, sites=(*place.sites, site))
        place.write()
    told = invitation(place, key, place.reach)
    with files.explain_errors(place.invitations):
        place.invitations.mkdir(exist_ok=True)
    told.write(place.invitation(key.name))
    return place, told


def dismiss(place: Place, name: str) -> None:
    """Let a site on another machine in no more.

    Raises:
        ConfigError: there is no such site, or the SuperLink does not run.
        FedvlmError: it does not do it.
    """
    away = [site.name for site in place.sites if site.away]
    if name not in away:
        raise ConfigError(unknown_word(name, away) if away else
                          f"'{place.folder}' has no sites on other machines")
    if place.node(name):
        if not processes.pid_of(place, LINK):
            raise ConfigError("the SuperLink is not running: start it with fedvlm federation up "
                              f"--federation {place.folder}, then dismiss the site")
        commands.flwr(place, "supernode", "unregister", str(place.node(name)), LINK)
    for path in (place.public(name), place.registered(name), place.invitation(name)):
        path.unlink(missing_ok=True)
    replace(place, sites=tuple(site for site in place.sites if site.name != name)).write()


def connected_sites(place: Place) -> dict[str, bool]:
    """Say of each site on another machine whether the SuperLink hears of it.

    Raises:
        FedvlmError: the SuperLink does not answer.
    """
    away = [site.name for site in place.sites if site.away]
    if not away:
        return {}
    told = commands.flwr(place, "supernode", "list", LINK).get("nodes", [])
    here = {int(node["node-id"]) for node in told if node.get("status") == "online"}
    return {name: place.node(name) in here for name in away}
