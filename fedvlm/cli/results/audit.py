"""Measure by attacks how much a finished run gives away of its images.

Lists what left the clients; tells training images from others (membership), by the loss and by
shadow runs that are trained anew; reads labels out of one step, and image features by gradient
inversion (of a prompt, a feature adapter or a head), beside a guess without the gradient; and puts
a lower bound of epsilon beside the claimed one. Writes audit.html and audit.json into the run's
folder. Attacks that fail prove nothing: a better one may exist.
"""

from __future__ import annotations

from argparse import Namespace

from fedvlm.cli.models._run import add_trust
from fedvlm.console.parser import Parser, amount, whole_number
from fedvlm.console.screen import complain, progress, say
from fedvlm.core import files

EXAMPLES = (
    "fedvlm audit RUN",
    "fedvlm audit RUN --shadows 64 --root DATA/",
    "fedvlm audit RUN --fail-above 0.6  # exit code 1 where an attack is better: for CI",
)
ALSO = ("attack", "membership", "leak", "privacy")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("run", metavar="RUN", help="a finished run's folder")
    add("--shadows", type=whole_number(0), default=None, metavar="N", help="shadow runs, an even "
        "number, 16 to 64 are usual; 0: none (16, or none if they would take over ten minutes)")
    add("--seed", type=whole_number(0), default=1, metavar="N", help="seed of the audit's own "
        "draws (1)")
    add("--fail-above", type=amount("an AUC", 0, 1), default=None, metavar="AUC", help="exit code "
        "1 if an attack's AUC is larger (0.5 is a coin), or shows more epsilon than is claimed")
    add("--root", default="", metavar="DATA/", help="where the images are now")
    add_trust(parser)


def main(args: Namespace) -> int:
    """Say the cost, attack, write page and numbers, and print them.

    Returns:
        0, or 1 where ``--fail-above`` is given, and an attack's AUC is above it or shows a larger
        epsilon than the run claims of that model.
    """
    progress("loading PyTorch")
    from fedvlm.api import audit as room  # start-up: PyTorch, 2 s
    from fedvlm.federation.discovery import Trust  # start-up: PyTorch
    from fedvlm.report.pages.audit import audit_page, exceeds_claim  # start-up: jinja

    plan = room.plan_audit(
        args.run, shadows=args.shadows, seed=args.seed,
        changes={"DATASET.ROOT": args.root} if args.root else {},
        trust=Trust(args.trainer, args.trust_code),
    )
    complain(plan.cost(), prefix="note")
    record = room.carry_out_audit(plan)
    files.write_json(plan.path / "audit.json", files.json_ready(record))
    files.write_text(plan.path / "audit.html", audit_page(plan.run, record))
    say(*room.audit_lines(record), f"page: {plan.path / 'audit.html'}")
    worst = room.worst_auc(record)
    if args.fail_above is not None and worst > args.fail_above:
        complain(f"an attack has AUC {worst:.3f}, above --fail-above {args.fail_above:g}")
        return 1
    if args.fail_above is not None and exceeds_claim(record):
        complain("an attack shows a larger epsilon than the run claims (--fail-above)")
        return 1
    return 0
