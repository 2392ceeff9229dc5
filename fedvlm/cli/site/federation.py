"""Start, extend, inspect or stop a federation of sites over TLS.

up: make certificates and a key for each site here, begin Flower's SuperLink and register the sites:
no other site can connect. Repeated, it reports what is running and starts the rest. With files of
sites (fedvlm site make), each is served by a process of its own on the data of its owner. With
--listen, sites on other machines can take part as well. admit: let sites on other machines in, each
by its public key (fedvlm site key), and write an invitation for each. dismiss: remove a site; it
cannot connect any more. status: processes, ports and logs; which of the sites on other machines are
connected. down: end all processes on this machine. Keys and states of clients stay in the folder.

To run on it: fedvlm run --engine flower FED.SITES 0-1,2-3. Processes of the sites begin with
the run and stay, so that the next command of the same run finds them. Sites with data of their own:
fedvlm run --engine sites --federation federation --site-file server/site.json
Flower: pip install 'fedvlm[flower]', or in an environment of its own, named by FEDVLM_FLOWER.

exit code of status: 0 everything is running, 1 something is not.
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from fedvlm.cli.verbs import verbs
from fedvlm.console.parser import Parser
from fedvlm.console.rows import table_lines
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError, unknown_word
from fedvlm.core.files import user_path
from fedvlm.distributed.flower import network, processes
from fedvlm.distributed.flower.admission import admit, connected_sites, dismiss
from fedvlm.distributed.flower.commands import LINK
from fedvlm.distributed.flower.invitation import host_port, read_public
from fedvlm.distributed.flower.place import ANY, FOLDER, MOST, Place, read_place, split_evenly

EXAMPLES = (
    "fedvlm federation up --loopback 2  # and fedvlm run --demo --engine flower FED.SITES 0-2,3-4",
    "fedvlm federation up clinic_a/site.yaml clinic_b/site.yaml",
    "fedvlm federation up --listen 192.0.2.7:7400  # and for each site: fedvlm federation admit",
    "fedvlm federation admit clinic_a.pub  # writes federation/invitations/clinic_a.json",
    "fedvlm federation dismiss clinic_a",
    "fedvlm federation status",
    "fedvlm federation down",
)
ALSO = ("flower", "superlink", "supernode", "loopback", "deploy", "tls", "invitation", "machines")
WHAT = ("up", "admit", "dismiss", "status", "down")
_FLAGS = {  # a flag of ours -> whose it is
    "loopback": ("up",), "listen": ("up",), "reach": ("up",), "name": ("admit",),
    "json": ("status",), "files": ("up", "admit", "dismiss"),
}


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("what", nargs="?", default="", metavar="WHAT", help=f"one of {', '.join(WHAT)}")
    add("files", nargs="*", default=[], metavar="FILE", help="up: the site.yaml of each site "
        "with its own data; admit: public keys of sites on other machines; dismiss: name of a site")
    add("--loopback", type=int, default=0, metavar="N", help="up: number of sites, all on "
        "this machine")
    add("--listen", default="", metavar="HOST:PORT", help="up: address on which sites on other "
        "machines connect, over TLS")
    add("--reach", default="", metavar="HOST:PORT", help="up: address that the sites use, if it "
        "differs (behind a router, or with --listen 0.0.0.0:PORT)")
    add("--name", default="", metavar="NAME", help="admit: name of the site (default: the name "
        "in its key)")
    add("--federation", default=FOLDER, metavar="FOLDER", help="folder of the federation "
                                                               f"({FOLDER})")
    add("--json", action="store_true", help="status: for programs")
    parser.checks.append(_mistakes)


def _mistakes(args: Namespace) -> list[str]:
    """Return what is missing, or does not go together."""
    if not args.what:
        return []
    if args.what not in WHAT:
        return [unknown_word(args.what, WHAT)]
    stray = [name for dest, name in args.spelling.items()
             if dest in _FLAGS and args.what not in _FLAGS[dest]]
    if args.files and args.what not in _FLAGS["files"]:
        stray.append(args.files[0])
    if stray:
        return [f"{args.what} does not read {stray[0]}"]
    return _of_up(args) if args.what == "up" else _of_others(args)


def _of_up(args: Namespace) -> list[str]:
    if args.loopback and (args.files or args.listen):
        return ["give --loopback N or " + ("files of sites" if args.files else "--listen")
                + ", not both"]
    if not 0 <= args.loopback <= MOST:
        return [f"--loopback {args.loopback}: 1 to {MOST} sites"]
    if args.reach and not args.listen:
        return ["--reach needs --listen"]
    out = []
    for flag, address in (("--listen", args.listen), ("--reach", args.reach)):
        try:
            host = host_port(address)[0] if address else ""
        except ConfigError as error:
            out.append(f"{flag}: {error}")
            continue
        if host in ANY and (flag == "--reach" or not args.reach):
            out.append(f"{flag} {address} is not an address that a site can reach: add "
                       "--reach HOST:PORT with this machine's address")
    known = (user_path(args.federation) / "federation.json").is_file()
    if not (args.loopback or args.files or args.listen or known):
        out.append("up needs --loopback N (how many sites), a site.yaml for each, or --listen "
                   "HOST:PORT for sites on other machines")
    return out


def _of_others(args: Namespace) -> list[str]:
    if args.what == "admit" and not args.files:
        return ["admit needs the public key of a site: FILE.pub, written by fedvlm site key"]
    if args.what == "admit" and args.name and len(args.files) > 1:
        return ["--name works with one key: admit one site at a time"]
    if args.what == "dismiss" and len(args.files) != 1:
        return ["dismiss needs the name of one site (fedvlm federation status lists them)"]
    return []


def main(args: Namespace) -> int:
    """Do what the first word says; return the exit code.

    Raises:
        ConfigError: Flower is not installed, no federation is there, or another one.
        FedvlmError: a process does not begin, or does not end.
    """
    folder = user_path(args.federation)
    if not args.what:
        say(*verbs()["federation"].parser().format_help().splitlines())
        return 0
    if args.what == "up":
        return _up(args, folder.absolute())
    place = read_place(folder.absolute())
    if args.what == "admit":
        return _admit(args, place)
    if args.what == "dismiss":
        dismiss(place, args.files[0])
        say(f"{args.files[0]} was removed and cannot connect any more")
        return 0
    if args.what == "down":
        count = network.down(place)
        say(f"{count} processes stopped; keys and states stay in {folder}" if count
            else "nothing was running; keys and states are in " + str(folder))
        return 0
    return _status(place, args.json)


def _up(args: Namespace, folder: Path) -> int:
    owners = [str(user_path(file).absolute()) for file in args.files] or [""] * args.loopback
    lost = [file for file in filter(None, owners) if not Path(file).is_file()]
    if lost:
        raise ConfigError(f"'{lost[0]}' does not exist; create it with fedvlm site make")
    place = network.up(folder, owners, say, args.listen, args.reach)
    many = len(place.sites)
    option = "" if args.federation == FOLDER else f" --federation {args.federation}"
    if place.listen or any(site.owner for site in place.sites):
        network.serve_owners(place, say)
        count = f"{many} sites" if many != 1 else "1 site"
        say(*([f"{count} in it. A run on them: fedvlm run --engine sites --federation "
               f"{args.federation} --site-file server/site.json ..."] if many else []),
            *(["a site on another machine: run fedvlm site key there, then fedvlm federation admit"
               f"{option} NAME.pub"] if place.listen else []))
        return 0
    say(f"{many} sites are registered. A run of {2 * many} clients on them: fedvlm run --demo "
        f"--num-users {2 * many} --engine flower{option} FED.SITES {split_evenly(2 * many, many)}")
    return 0


def _admit(args: Namespace, place: Place) -> int:
    keys = [read_public(user_path(file), args.name) for file in args.files]
    for key in keys:
        place, told = admit(place, key)
        say(f"{key.name} is admitted by its key {key.fingerprint}: compare it with the site's "
            "owner by telephone",
            f"send {place.invitation(key.name)}: {told.address}, certificate "
            f"{told.fingerprint}",
            f"on the site's machine: fedvlm site serve SITE.YAML --federation {key.name}.json")
    return 0


def _status(place: Place, plain: bool) -> int:
    parts = network.status(place)
    waiting = {site.name for site in place.here if not site.owner}  # for a run
    down = [p.name for p in parts if not p.pid and p.name not in waiting]
    away = {site.name: False for site in place.sites if site.away}
    if away and LINK not in down:
        away = connected_sites(place)
    code = int(bool(down) or not all(away.values()))
    if plain:
        say(json.dumps({
            "folder": str(place.folder), "flower": str(place.flower),
            "processes": [vars(p) | {"log": str(place.log(p.name))} for p in parts],
            "away": away, "exit_code": code,
        }, indent=1))
        return code
    rows = [{"process": p.name, "id": str(p.pid or "-"), "at": p.where, "for": _short(p.about)}
            for p in parts]
    rows += [{"process": name, "id": "-", "at": "a machine of its own",
              "for": "connected" if there else "not connected"} for name, there in away.items()]
    say(*table_lines(rows), f"logs: {place.folder / 'logs'}")
    if down:
        said = [f"{name} is not running" + (f": {words}" if (words := _last(place, name)) else "")
                for name in down]
        say(*said, f"start what is missing: fedvlm federation up --federation {place.folder}")
    return code


def _last(place: Place, name: str) -> str:
    return processes.tail(place.log(name))[:200] if name in (LINK, *processes.names(place)) else ""


def _short(about: str) -> str:
    """Return the end of the path of a run, or of an owner's file with its folder."""
    path = Path(network.run_of(about) or about)
    return str(Path(path.parent.name) / path.name) if path.suffix else path.name
