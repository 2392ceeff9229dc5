"""Set up, check and serve one party's images as a site of a federation.

Images never leave the site.

make: write FOLDER/site.json from folders of images (a client each), and FOLDER/site.yaml, in which
the owner says what may run. Without --client: the file of a server, with class names and perhaps a
public test set. With --split 0-1,2-3 and the flags of a run: sites of its clients, to try things
out on one machine.
check: load one site's images alone and say counts, problems, and what a server would be told. Of a
coordinator's site.json: its classes and its own images, which --images has, or its folder.
status: what a site keeps for which run: clients, versions, rounds, bytes.
key site.yaml: make a pair of keys for a coordinator, and the file to send there; it sends back an
invitation (fedvlm federation admit).
serve site.yaml: wait for coordinators, and work for any run that the owner allows, on this site's
images; a run's config comes from its coordinator. With --federation INVITATION over Flower, and no
port is open here; with --listen PATH for coordinators on this machine (fedvlm run --engine sites
--sites-at PATH).
export site.yaml [RUN] --client K --to FOLDER --format NAME: write the model of a client of this
site, as it was last evaluated; formats as of fedvlm export. Nothing is sent.
forget site.yaml [RUN]: erase what this site keeps of a run, or of all: clients' states and words of
the run; and say what the others still hold. --dry-run: say it alone. With --client K, --images
FOLDER (a patient's; or a text file of names, one a line), or --group ID (a patient of make's
--groups), these leave site.json, too.
record site.yaml: ten questions about what left this site, to whom and how protected, answered from
the log of its messages and its rules; writes record.md beside site.yaml.
prune site.yaml: with --days N remove the lines of that log of all that was over N days ago; a line
says how many, and seals of later lines stay valid. With --sums let secure sums be read over other
sites or clients than before, or under other weights (FED.SECURE_SUM). Only while nobody serves the
site.
stop site.yaml: end the process that serves it; what it keeps is whole at any time.

exit code of check and record: 0 all is well, 3 images, lists or the log are not, 2 wrong usage or
rules.
"""

from __future__ import annotations

import importlib
from argparse import Namespace

from fedvlm.cli.site import _make, _serve
from fedvlm.cli.verbs import verbs
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core.errors import unknown_word
from fedvlm.job.flags import FLAGS, add_flags, add_opts, pairs

EXAMPLES = (
    "fedvlm site make --client 0 photos/ --classes classes.txt --to clinic/",
    "fedvlm site make --classes classes.txt --public test_photos/ --to server/",
    "fedvlm site make --split 0-1,2-3 --to trial/ --demo --num-users 4",
    "fedvlm site check clinic/site.yaml",
    "fedvlm site check server/site.json --images test_photos/",
    "fedvlm site status clinic/site.yaml",
    "fedvlm site record clinic/site.yaml",
    "fedvlm site export clinic/site.yaml --client 0 --to model/ --format safetensors",
    "fedvlm site forget clinic/site.yaml --dry-run",
    "fedvlm site forget clinic/site.yaml --images withdrawn.txt",
    "fedvlm site prune clinic/site.yaml --days 365",
    "fedvlm site key clinic/site.yaml  # and send clinic/clinic.pub to the coordinator",
    "fedvlm site serve clinic/site.yaml --federation clinic.json",
    "fedvlm site stop clinic/site.yaml",
    "fedvlm site serve clinic/site.yaml --listen sockets/clinic",
)
ALSO = ("party", "silo", "owner", "serve")
_WORDS: dict[str, tuple[str, tuple[str, ...]]] = {  # what does it, and the flags that it reads
    "make": ("_make.make_site", _make.OWN),
    "check": ("_look.check", ("full", "json", "sample", "images")),
    "status": ("_look.site_status", ("json",)),
    "key": ("_serve.key", _serve.KEYS),
    "serve": ("_serve.serve_command", _serve.OWN),
    "record": ("_record.site_record", ("head", "json")),
    "export": ("_export.site_export", ("client", "to", "format", "licence", *_serve.LOCAL)),
    "prune": ("_erase.prune", ("days", "sums")),
    "forget": ("_erase.erase", ("dry_run", "client", "images", "group")),
    "stop": ("_look.stop", ()),
}
_OF_RUN = {flag.dest or flag.key for flag in FLAGS}  # make and serve say more of these themselves
_LONGEST = 36_500  # days
_FILE = "FILE is a site.yaml, written by fedvlm site make"


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("what", nargs="?", default="", metavar="WHAT", help=f"one of {', '.join(_WORDS)}")
    _make.flags(parser)
    add("--full", action="store_true", help="check: decode all images")
    add("--sample", type=int, default=None, metavar="N", help="check: number of images to decode "
                                                              "(64)")
    add("--json", action="store_true", help="check, status, record: the full result as JSON")
    add("--head", default="", metavar="SEAL", help="record: seal of an earlier record that was "
        "kept elsewhere: is its line still in the log?")
    add("--group", default="", metavar="ID", help="forget: a patient, or other group, whose images "
        "leave")
    add("--days", type=int, default=None, metavar="N", help="prune: remove the log of what was "
        "over N days ago")
    add("--sums", action="store_true", help="prune: allow secure sums over other sites")
    add("--format", default="", metavar="NAME", help="export: safetensors, peft, open_clip or onnx")
    add("--licence", "--license", dest="licence", default="", metavar="NAME",
        help="export: licence of the base weights, for the model card")
    _serve.flags(parser)
    add_flags(parser, shown=False)
    add_opts(parser)
    parser.checks.remove(pairs)  # check and status take a file in their place
    parser.checks.append(_mistakes)


def _mistakes(args: Namespace) -> list[str]:
    """Return what is missing, or does not go together."""
    if not args.what:
        return []
    if args.what not in _WORDS:
        return [unknown_word(args.what, list(_WORDS))]
    reads = {*_WORDS[args.what][1], *(_OF_RUN if args.what in ("make", "serve") else ())}
    stray = [f"{args.what} does not read {name}" for dest, name in args.spelling.items()
             if dest not in reads]
    if args.what == "export":
        return stray + _export_mistakes(args)
    if stray:
        return stray
    if args.what == "make":
        return _make.make_mistakes(args)
    if args.what == "serve":
        return _serve.serve_mistakes(args)
    if args.what == "forget" and (args.client or args.images or args.group):
        return _part_mistakes(args)
    if len(args.opts) != 1 and not (args.what == "forget" and len(args.opts) == 2):
        run = " [RUN]" if args.what == "forget" else ""
        return [f"{args.what} needs one FILE: fedvlm site {args.what} FILE{run}; {_FILE}"]
    if args.what == "prune" and args.days is None and not args.sums:
        return ["prune needs --days N or --sums"]
    if args.days is not None and not 0 <= args.days <= _LONGEST:
        return [f"--days: a number of days, 0 to {_LONGEST}"]
    if args.full and args.sample is not None:
        return ["give --full or --sample N, not both"]
    return []


def _part_mistakes(args: Namespace) -> list[str]:
    """Return what does not go together where a part of a site is forgotten."""
    out = [f"--client {' '.join(words)}: forget takes one number, and FILE before it: "
           "fedvlm site forget FILE --client 3"
           for words in args.client if len(words) != 1 or not words[0].isdecimal()]
    if not args.opts and not out:
        out.append(f"forget needs one FILE: fedvlm site forget FILE; {_FILE}")
    if bool(args.images) + bool(args.group) + len(args.client) > 1:
        out.append("give --client K once, or --images, not both" if not args.group else
                   "give --client K, --images or --group, not two of them")
    if len(args.opts) > 1:
        out.append("--client and --images are of all runs: drop RUN" if not args.group else
                   "--group is of all runs: drop RUN")
    return out


def _export_mistakes(args: Namespace) -> list[str]:
    """Return what is missing, or does not go together, where a model is written."""
    usage = "fedvlm site export FILE [RUN] --client K --to FOLDER --format NAME"
    words = args.opts[2 - len(args.opts) % 2:]  # behind FILE, or FILE RUN
    out = [f"export does not read {key}" for key in words[::2] if key not in _serve.LOCAL]
    if not args.opts:
        out.append(f"export needs one FILE: {usage}; {_FILE}")
    out += [f"export needs {flag}: {usage}" for flag, value in (
        ("--client K", args.client), ("--to FOLDER", args.to), ("--format NAME", args.format),
    ) if not value]
    if len(args.client) > 1 or any(len(w) != 1 or not w[0].isdecimal() for w in args.client):
        said = " ".join(" ".join(words) for words in args.client)
        out.append(f"--client {said}: export takes one number, such as --client 3")
    return out


def main(args: Namespace) -> int:
    """Do what the first word says; return the exit code.

    Raises:
        ConfigError: wrong rules, or a place that holds another file or cannot be listened at.
        DataError: images, lists or states that are not what they have to be.
    """
    if not args.what:
        say(*verbs()["site"].parser().format_help().splitlines())
        return 0
    place, _, name = _WORDS[args.what][0].partition(".")
    room = importlib.import_module(f"{__package__}.{place}")
    return int(getattr(room, name)(args))
