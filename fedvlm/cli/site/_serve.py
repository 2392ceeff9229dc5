"""``fedvlm site serve`` and ``key``: a party's site that waits for runs."""

from __future__ import annotations

from argparse import Namespace

from fedvlm.console.parser import Parser
from fedvlm.console.screen import complain, progress, say
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import user_path
from fedvlm.distributed.flower.invitation import read_invitation
from fedvlm.distributed.flower.outpost import CODE, FOLDER, Outpost, make_key

OWN = ("listen",)
KEYS = ("name", "anew")
LOCAL = ("DEVICE", "CACHE_DIR")  # keys that a site's owner sets; the coordinator sets the others
BEHIND = "FED.FEDERATION"  # for a site: the invitation of a federation


def flags(parser: Parser) -> None:
    """Add what serving and keys take beside the flags of a run."""
    add = parser.add_argument
    add("--listen", default="", metavar="PATH", help="serve: Unix socket for a coordinator of "
        "the same user on this machine, in a folder that only this user can open")
    add("--name", default="", metavar="NAME", help="key: name of the site in the "
        "federation (default: the folder's name)")
    add("--anew", action="store_true", help="key: replace the existing "
        "key")


def serve_mistakes(args: Namespace) -> list[str]:
    """Return what is missing, and what does not go together."""
    if len(args.opts) % 2 == 0:
        return ["serve needs the site's file: fedvlm site serve SITE.YAML --federation INVITATION"]
    file, given = args.opts[0], args.flags | dict(zip(args.opts[1::2], args.opts[2::2],
                                                      strict=True))
    out = []
    if BEHIND in given and args.listen:
        out.append("--federation INVITATION cannot be combined with --listen: drop one of them")
    elif BEHIND not in given and not args.listen:
        out.append(f"serve {file} needs --federation INVITATION, written by the coordinator's "
                   "fedvlm federation admit, or --listen PATH for a coordinator on this machine")
    stray = [args.flag_names.get(key, key) for key in given if key not in (*LOCAL, BEHIND)]
    stray += [args.spelling[d] for d in args.spelling
              if d not in OWN and d not in args.flags]
    return out + [f"serve {file} does not read {word}: a run's words come from its coordinator, "
                  f"what may run and where states lie from {file}" for word in dict.fromkeys(stray)]


def serve_command(args: Namespace) -> int:
    """Serve; return the exit code.

    Raises:
        FedvlmError: a file or image is missing or damaged, or a socket cannot be had.
    """
    from fedvlm.distributed.site_yaml import read_site_yaml  # start-up: PyTorch, 2 s
    from fedvlm.job.sites.resident import serve_site  # start-up: PyTorch, 2 s

    own = args.flags | dict(zip(args.opts[1::2], args.opts[2::2], strict=True))
    file = user_path(args.opts[0])
    owner, mine = read_site_yaml(file), {k: v for k, v in own.items() if k in LOCAL}
    if BEHIND not in own:
        serve_site(owner, user_path(args.listen), mine, _tell, progress)
        return 0
    path = user_path(own[BEHIND])
    invitation = read_invitation(path)
    outpost = Outpost([file.parent, path.parent], invitation, _tell)
    with outpost.quarters():
        _tell(f"the coordinator is at {invitation.address}, its certificate is "
              f"{invitation.fingerprint}: compare it with the one that fedvlm federation admit "
              "printed there")
        _tell(CODE)
        serve_site(owner, outpost.path, mine, _tell, progress, outpost)
    return 0


def key(args: Namespace) -> int:
    """Make the keys of a site for a coordinator on another machine; return the exit code.

    Raises:
        ConfigError: there is no such site, Flower is not installed, or no good name.
        FedvlmError: no keys can be made.
    """
    file = user_path(args.opts[0])
    if not file.is_file():
        raise ConfigError(f"'{file}' does not exist; create it with fedvlm site make")
    name = args.name or file.absolute().parent.name
    made, path = make_key(file.parent, name, args.anew)
    say(f"wrote {path}: the public key of {made.name}, {made.fingerprint}",
        f"send {path.name} to the coordinator and compare the fingerprint by telephone; the "
        f"private key stays in {file.parent / FOLDER}",
        f"after you receive the invitation: fedvlm site serve {file} --federation "
        f"{made.name}.json")
    return 0


def _tell(words: str) -> None:
    progress.clear()
    complain(words, prefix="site")
