"""Do a finished run again without a client, a group (a patient) or some images.

The new run has the same partition with these images away from round 1, and the bits of a run that
never saw them. forgotten.json in it is a certificate that names both runs. The old run stays until
--delete-old, or until you delete it; what else may still know the images is listed.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from fedvlm.cli.models._run import add_trust
from fedvlm.console.parser import Parser
from fedvlm.console.screen import complain, progress, say

EXAMPLES = (
    "fedvlm forget RUN --client 3 --dry-run  # what it takes",
    "fedvlm forget RUN --client 3",
    "fedvlm forget RUN --group patient-17 --delete-old",
    "fedvlm forget RUN --client 3 --approximate federaser,pga  # two methods of the literature",
    "fedvlm forget RUN --images withdrawn.txt --root DATA/  # names, one a line",
)
ALSO = ("unlearn", "erase", "remove-client")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("run", metavar="RUN", help="a finished run's folder")
    add("--client", default="", metavar="K", help="a client's number or name; over sites also a "
        "site's name")
    add("--group", default="", metavar="ID", help="all images of a group (column DATASET.GROUPS), "
        "a patient for one")
    add("--images", default="", metavar="FOLDER", help="all images in a folder, or those that a "
        "text file names, one a line; over sites the names of sites that took images out of "
        "their lists (fedvlm site forget), with commas between")
    add("--dry-run", action="store_true", help="only say what it would take")
    add("--delete-old", action="store_true", help="delete the old run's folder when the new run is "
        "done")
    add("--approximate", default="", metavar="METHOD", help="also try federaser, pga or both (with "
        "a comma) on a client, scored against the exact run; no guarantee")
    add("--root", default="", metavar="DATA/", help="where the images are now")
    add("--look", nargs="+", default=[], metavar="DIR", help="also list exports and packs in these "
        "folders that still know it")
    add_trust(parser)


def main(args: Namespace) -> int:
    """Say what it takes, do it, and list what still knows."""
    progress("loading PyTorch")
    from fedvlm.api import forget as room  # start-up: PyTorch, 2 s
    from fedvlm.federation.discovery import Trust  # start-up: PyTorch

    plan = room.plan_forgetting(
        args.run, client=args.client, group=args.group, images=args.images,
        changes={"DATASET.ROOT": args.root} if args.root else {},
        trust=Trust(args.trainer, args.trust_code), look=args.look,
    )
    methods = [word.strip() for word in args.approximate.split(",") if word.strip()]
    if args.approximate:
        from fedvlm.api import approximate  # start-up: where it is asked for

        approximate.check_methods(plan, methods)
    say(*plan.lines())
    if args.dry_run:
        say("dry run: nothing was written", *_known(plan.known))
        return 0
    folder = room.carry_out(plan)
    say(f"done: {folder}", f"certificate: {folder / 'forgotten.json'}")
    known = list(plan.known)
    if methods:
        rows, files = approximate.score_approximate(plan, folder, methods)
        say(*approximate.score_lines(rows))
        known += [(file, approximate.NO_GUARANTEE) for file in files
                  if file not in [place for place, _ in known]]
    if args.delete_old:
        room.delete_run(plan.path)
        say(f"deleted: {plan.path}")
        known = [one for one in known if one[0] != plan.path]
    say(*_known(known))
    complain("copies that are elsewhere (exports, packs, reports, results sent to others) are not "
             "known here: --look DIR looks in another folder; delete them yourself", prefix="note")
    return 0


def _known(places: Sequence[tuple[Path, str]]) -> list[str]:
    return ["may still know what is forgotten:", *(f"  {path} ({what})" for path, what in places)]
