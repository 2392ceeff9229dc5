"""``fedvlm site serve``: a party's site that waits for runs, or a worker of a simulation."""

from __future__ import annotations

import re
from argparse import Namespace

from fedvlm.console.parser import Parser
from fedvlm.console.screen import complain, progress, say
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import user_path
from fedvlm.distributed.flower.invitation import read_invitation
from fedvlm.distributed.flower.outpost import CODE, FOLDER, Outpost, check_key, make_key, quarters
from fedvlm.job.flags import pairs

NOWHERE = -1
OWN = ("listen", "states", "run", "handle", "clients")
LOCAL = ("DEVICE", "CACHE_DIR")  # keys that a site's owner sets; the coordinator sets the others
BEHIND = "FED.FEDERATION"  # for a site: the invitation of a coordinator on another machine


def flags(parser: Parser) -> None:
    """Add what serving takes beside the flags of a run."""
    add = parser.add_argument
    add("--listen", default="", metavar="ADDRESS", help="host:port, or unix:PATH")
    add("--token-file", default="", metavar="FILE", help="the secret that a driver has to know; "
        "chmod 600")
    add("--states", default="", metavar="FOLDER", help="where clients' states lie, the same for "
        "all workers of a run")
    add("--run", default="", metavar="FOLDER", help="a run's folder in the place of its flags")
    add("--clients", default="", metavar="0,1", help="with --listen: a site of these clients, with "
        "states of its own")
    add("--name", default="", metavar="NAME", help="key: of the site among the others (its "
        "folder's)")
    add("--anew", action="store_true", help="key: another one in the place of the one that is "
        "there")
    add("--handle", type=int, default=NOWHERE, metavar="N", help="a socket that the driver which "
        "began this process left open, in the place of --listen; with it: this process ends as the "
        "driver does")


def mistakes(args: Namespace) -> list[str]:
    """Return what is missing, and what does not go together."""
    if len(args.opts) % 2:
        return _of_party(args)
    out = pairs(args)
    out += [] if args.states else ["--states FOLDER: say where clients' states lie (a party with "
                                   "data of its own: fedvlm site serve site.yaml --listen ...)"]
    begun = args.handle != NOWHERE
    if not begun and not args.listen:
        out.append("say one of --listen ADDRESS and --handle N")
    if args.clients and not re.fullmatch(r"\d{1,9}(,\d{1,9})*", args.clients):
        out.append(f"--clients {args.clients}: numbers, such as 0,1")
    if args.clients and not args.listen:
        out.append("--clients goes with --listen")
    if args.listen and not args.token_file:
        out.append("--listen wants --token-file FILE: whoever reaches a worker could work with it "
                   "(umask 077; openssl rand -hex 32 > FILE)")
    stray = [*args.flags, *args.opts[:1]] if args.run else []
    if stray:
        out.append(f"--run says all of the run: drop '{args.flag_names.get(stray[0], stray[0])}'")
    return out


def _of_party(args: Namespace) -> list[str]:
    """Return the same of a party with data of its own: ``serve site.yaml``."""
    file, given = args.opts[0], args.flags | dict(zip(args.opts[1::2], args.opts[2::2],
                                                      strict=True))
    out = []
    if BEHIND in given:
        stray = [args.spelling[d] for d in ("listen", "token_file") if d in args.spelling]
        out += [f"--federation INVITATION has its own way to the coordinator: drop {word}"
                for word in stray]
    elif not args.listen or not args.token_file:
        out.append(f"serve {file} wants --listen ADDRESS and --token-file FILE, the secret that "
                   "coordinators have to know (umask 077; openssl rand -hex 32 > FILE), or "
                   "--federation INVITATION, which a coordinator's fedvlm federation admit wrote")
    stray = [args.spelling[d] for d in ("states", "run", "handle") if d in args.spelling]
    stray += [args.flag_names.get(key, key) for key in given
              if key not in (*LOCAL, BEHIND, "FED.TOKEN_FILE")]
    stray += [args.spelling[d] for d in args.spelling
              if d not in (*OWN, "token_file", "what") and d not in args.flags]
    return out + [f"serve {file} does not read {word}: a run's words come from its coordinator, "
                  f"what may run and where states lie from {file}" for word in dict.fromkeys(stray)]


def main(args: Namespace) -> int:
    """Serve; return the exit code.

    Raises:
        FedvlmError: whatever of the run cannot be built, or an address that cannot be had.
    """
    if len(args.opts) % 2:
        return _serve_party(args)
    from fedvlm.job.resolve import config_of, resolve  # start-up: NumPy, 0.15 s

    if args.run:
        cfg = config_of(user_path(args.run), {})
    else:
        plan = resolve(args)
        complain(*plan.notes, prefix="note")
        cfg = plan.jobs[0].cfg
    from fedvlm.job.engines.serving import (  # start-up: PyTorch, 2 s
        work_at,
        work_for_driver,
    )

    states = user_path(args.states)
    if args.listen:
        clients = [int(c) for c in args.clients.split(",") if c]
        handle = None if args.handle == NOWHERE else args.handle
        work_at(cfg, states, args.listen, args.token_file, _say, clients, handle)
    else:
        work_for_driver(cfg, states, args.handle, _say)
    return 0


def _serve_party(args: Namespace) -> int:
    from fedvlm.distributed.site_yaml import read_site_yaml  # start-up: PyTorch, 2 s
    from fedvlm.job.sites.resident import serve_site  # start-up: PyTorch, 2 s

    own = args.flags | dict(zip(args.opts[1::2], args.opts[2::2], strict=True))
    file = user_path(args.opts[0])
    owner, mine = read_site_yaml(file), {k: v for k, v in own.items() if k in LOCAL}
    if BEHIND not in own:
        serve_site(owner, args.listen, args.token_file, mine, _tell, progress)
        return 0
    invitation = read_invitation(user_path(own[BEHIND]))
    check_key(file.parent, invitation)
    with quarters() as (worker, token):
        outpost = Outpost(file.parent, invitation, worker, token, _tell)
        _tell(f"the coordinator is at {invitation.address}, its certificate is "
              f"{invitation.fingerprint}: compare that with what admit showed there")
        _tell(CODE)
        serve_site(owner, f"unix:{worker}", str(token), mine, _tell, progress, outpost,
                   f"a socket of its own, as {invitation.name}")
    return 0


def key(args: Namespace) -> int:
    """Make the keys of a site for a coordinator on another machine; return the exit code.

    Raises:
        ConfigError: there is no such site, Flower is not installed, or no good name.
        FedvlmError: no keys can be made.
    """
    file = user_path(args.opts[0])
    if not file.is_file():
        raise ConfigError(f"there is no '{file}'; fedvlm site make writes one")
    name = args.name or file.absolute().parent.name
    made, path = make_key(file.parent, name, args.anew)
    say(f"wrote {path}: the public key of {made.name}, {made.fingerprint}",
        f"hand {path.name} to the coordinator and read it the fingerprint (by telephone); the "
        f"private key stays in {file.parent / FOLDER}",
        f"then, with the invitation that comes back: fedvlm site serve {file} --federation "
        f"{made.name}.json")
    return 0


def _tell(words: str) -> None:
    progress.clear()
    complain(words, prefix="site")


def _say(words: str) -> None:
    complain(words, prefix="worker")
