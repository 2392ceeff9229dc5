"""A federation of sites on this machine, over TLS: begin it, look at it, end it.

up: make certificates and a key for each site, begin Flower's SuperLink and a SuperNode for each
site, and register the sites: nobody else is let in. Begun again it says what runs, and begins what
does not.
status: its processes, ports and logs.
With files of sites (fedvlm site make), each gets the data of its owner and a worker that waits.
down: end all of them. Keys and states of clients stay in the folder.

A run then takes it: fedvlm run --engine flower FED.SITES 0-1,2-3. Workers of the sites begin with
the run and stay, so that the next command of the same run finds them.
Flower: pip install 'fedvlm[flower]', or in an environment of its own, named by FEDVLM_FLOWER.

exit code of status: 0 all runs, 1 something does not.
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
from fedvlm.distributed.flower.commands import LINK
from fedvlm.distributed.flower.place import FOLDER, MOST, Place, even, read_place

EXAMPLES = (
    "fedvlm federation up --loopback 2  # and fedvlm run --demo --engine flower FED.SITES 0-2,3-4",
    "fedvlm federation up clinic_a/site.yaml clinic_b/site.yaml",
    "fedvlm federation status",
    "fedvlm federation down",
)
ALSO = ("flower", "superlink", "supernode", "loopback", "deploy", "tls")
WHAT = ("up", "down", "status")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("what", nargs="?", default="", metavar="WHAT", help=f"one of {', '.join(WHAT)}")
    add("owners", nargs="*", default=[], metavar="SITE.YAML", help="up: sites with data of their "
        "own, each by its owner's file")
    add("--loopback", type=int, default=0, metavar="N", help="up: so many sites, all on this "
        "machine")
    add("--federation", default=FOLDER, metavar="FOLDER", help=f"where it lies ({FOLDER})")
    add("--json", action="store_true", help="status: for programs")
    parser.checks.append(_mistakes)


def _mistakes(args: Namespace) -> list[str]:
    """Return what is missing, or does not go together."""
    if not args.what:
        return []
    if args.what not in WHAT:
        return [unknown_word(args.what, WHAT)]
    if args.what != "up" and (args.loopback or args.owners):
        return [f"{args.what} does not read {args.owners[0] if args.owners else '--loopback'}"]
    if args.loopback and args.owners:
        return ["give --loopback N or files of sites, not both"]
    if args.json and args.what != "status":
        return [f"{args.what} does not read --json"]
    if args.what == "up" and not 0 <= args.loopback <= MOST:
        return [f"--loopback {args.loopback}: 1 to {MOST} sites"]
    known = (user_path(args.federation) / "federation.json").is_file()
    if args.what == "up" and not args.loopback and not args.owners and not known:
        return ["up wants --loopback N (how many sites), or a site.yaml for each"]
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
    if args.what == "down":
        count = network.down(place)
        say(f"{count} processes ended; keys and states stay in {folder}" if count
            else "nothing ran; keys and states are in " + str(folder))
        return 0
    return _status(place, args.json)


def _up(args: Namespace, folder: Path) -> int:
    owners = [str(user_path(file).absolute()) for file in args.owners] or [""] * args.loopback
    lost = [file for file in filter(None, owners) if not Path(file).is_file()]
    if lost:
        raise ConfigError(f"there is no '{lost[0]}': fedvlm site make writes one")
    place = network.up(folder, owners, say)
    many = len(place.sites)
    if any(site.owner for site in place.sites):
        network.serve_owners(place, say)
        say(f"{many} sites are there. A run on them: fedvlm run --engine sites --federation "
            f"{args.federation} --site-file server/site.json ...")
        return 0
    option = "" if args.federation == FOLDER else f" --federation {args.federation}"
    say(f"{many} sites are there. A run of {2 * many} clients on them: fedvlm run --demo "
        f"--num-users {2 * many} --engine flower{option} FED.SITES {even(2 * many, many)}")
    return 0


def _status(place: Place, plain: bool) -> int:
    parts = network.status(place)
    down = [p.name for p in parts if not p.pid and not p.name.endswith(network.WORKER)]
    if plain:
        say(json.dumps({
            "folder": str(place.folder), "flower": str(place.flower),
            "processes": [vars(p) | {"log": str(place.log(p.name))} for p in parts],
            "exit_code": int(bool(down)),
        }, indent=1))
        return int(bool(down))
    say(*table_lines([{
        "process": p.name, "id": str(p.pid or "-"), "at": p.where, "for": _short(p.about),
    } for p in parts]), f"logs: {place.folder / 'logs'}")
    if down:
        said = [f"{name} does not run" + (f": {words}" if (words := _last(place, name)) else "")
                for name in down]
        say(*said, f"begin what is missing: fedvlm federation up --federation {place.folder}")
    return int(bool(down))


def _last(place: Place, name: str) -> str:
    return processes.tail(place.log(name))[:200] if name in (LINK, *processes.names(place)) else ""


def _short(about: str) -> str:
    """Return the end of the path of a run, or of an owner's file with its folder."""
    path = Path(about)
    return str(Path(path.parent.name) / path.name) if path.suffix else path.name
