"""What methods cost beside FedAvg: FLOPs by formula, FLOPs as counted, CPU seconds.

Prints a table in Markdown. Method and FedAvg with the same trainable set take turns, round by
round; the median of the pairs' ratios of CPU time counts. What takes over 1.5 times what its FLOPs
predict is named, with the operators that are no matrix product and take most of its time.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from evidence.bench import flops, machine, methods
from evidence.bench.pairs import play
from evidence.commands import PROGRAM
from fedvlm.config.families import families
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core.errors import FedvlmError
from fedvlm.core.files import user_path, write_text
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import Federation
from fedvlm.job.inputs import SharedInputs

Row = dict[str, Any]  # plain values
FEDAVG = "fedavg"
MOST = 1.5  # times its FLOPs' prediction: what takes longer is named
# Of what a method trains, the words of --peft by which FedAvg trains the nearest.
WORDS = ("prompt", "text-lora", "feature", "lora", "adapter", "head")
EXAMPLES = tuple(f"{PROGRAM} cost {words}" for words in (
    "  # every method: half an hour", "fedtv ditto --pairs 5",
    "--markdown build/speed.md"))


def flags(parser: Parser) -> None:
    """Add what the command takes."""
    add = parser.add_argument
    add("trainers", nargs="*", metavar="METHOD", help="names or file.py:Class (all)")
    add("--pairs", type=int, default=3, metavar="N", help="interleaved pairs of a round (3)")
    add("--markdown", default="", metavar="FILE", help="also write the table here")
    parser.checks.append(lambda args: [] if args.pairs > 0 else [
        f"--pairs {args.pairs}: must be at least 1"])


def main(args: Namespace) -> int:
    """Measure, row by row, and print the table."""
    names = args.trainers or sorted(trainer_files())
    sides, rows = Sides(), []
    with machine.threads(1):
        for number, name in enumerate(names, start=1):
            say(f"{number} of {len(names)}: {name}")
            try:
                rows.append(sides.row(name, args.pairs))
            except FedvlmError as mistake:
                if len(names) == 1:
                    raise
                say(f"{name}: not measured: {mistake}")
    page = lines(rows, args.pairs)
    say(*page)
    if args.markdown:
        write_text(user_path(args.markdown), "\n".join(page) + "\n")
    return 0


class Sides:
    """Builds of methods, and of FedAvg with each trainable set."""

    def __init__(self) -> None:
        self._inputs = SharedInputs()
        self._others: dict[tuple[str, int], Federation] = {}

    def row(self, trainer: str, pairs: int) -> Row:
        """Return what a method costs in a round of four clients; shares are of FedAvg's.

        Raises:
            FedvlmError: what the build refuses, or a round.
        """
        epochs = epochs_of(trainer)
        fed = self._build(trainer, epochs)
        peft = nearest(families(fed.p0))
        if (peft, epochs) not in self._others:
            self._others[peft, epochs] = self._build(FEDAVG, epochs, peft)
        other = self._others[peft, epochs]
        own, base = count(fed), count(other)
        ratios = []
        for number in range(pairs):
            order = (fed, other) if number % 2 == 0 else (other, fed)
            spent = {id(f): play(f, 1, memory=False).cost.cpu for f in order}
            ratios.append(spent[id(fed)] / max(spent[id(other)], 1e-9))
        out = {"method": fed.trainer.name or trainer, "beside": peft, **own,
               "predicted_ratio": _share(own["predicted"], base["predicted"]),
               "counted_ratio": _share(own["counted"], base["counted"]),
               "cpu_ratio": median(ratios)}
        out["over"] = _share(out["cpu_ratio"], out["counted_ratio"] or 0)
        if (out["over"] or 0) > MOST:
            out["reason"] = reason(fed)
        return out

    def _build(self, trainer: str, epochs: int, peft: str = "") -> Federation:
        setting = replace(methods.QUICK, epochs=epochs)
        return methods.build(setting.words(trainer, False, peft), self._inputs)


def epochs_of(trainer: str) -> int:
    """Return the local epochs of a method's round: one, or two where it has phases."""
    return 2 if load_trainer(trainer).phases else 1


def nearest(trained: Sequence[str]) -> str:
    """Return FedAvg's ``--peft`` for what a method trains; lora for what else is in the tower."""
    return "+".join(w for w in WORDS if w in trained) or "lora"


def _share(own: float, base: float) -> float | None:
    return own / base if own and base else None


def count(fed: Federation) -> Row:
    """Return FLOPs of a round: ``predicted`` by formula from what was counted, and ``counted``.

    A first round, uncounted, makes what is kept.
    """
    play(fed, 1, memory=False)
    with FlopCount() as counter:
        work = play(fed, 1, memory=False).work
    return {"predicted": predict(fed, work), "counted": counter.flops}


class FlopCount(TorchDispatchMode):
    """Adds up the FLOPs of products, convolutions and attention by PyTorch's own formulas.

    ``FlopCounterMode`` stops at methods that look into autograd's graph, and does not know oneDNN's
    product.
    """

    flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        elif func.overloadpacket.__name__ == "_linear_pointwise":
            self.flops += linear_flops(*args[:2])
        return out


def linear_flops(x: Tensor, weight: Tensor) -> int:
    """Return the FLOPs of ``[..., in]`` with a weight ``[out, in]``."""
    return 2 * x.numel() * weight.shape[0]


def predict(fed: Federation, work: Mapping[str, int]) -> float:
    """Return a round's FLOPs by the formula of a layer, forward and activation-only backward.

    Of the tokens of texts and the blocks of images that a round counted; what is trained beside the
    towers, its weights' gradients and passes without a gradient are left out or taken as trained.
    """
    model = fed.model
    text, tower = model.backbone, model.vision
    spots = max(1, work.get("text_passes", 0))
    keys = work.get("text_tokens", 0) / spots / max(1, fed.plan.cohort) / 2
    per_token = len(text.text_blocks) * flops.layer(text.text_width, 1, keys)
    per_block = flops.layer(tower.width, tower.tokens, tower.tokens)
    return 2 * (work.get("text_tokens", 0) * per_token + work.get("image_blocks", 0) * per_block)


def reason(fed: Federation) -> str:
    """Return where a round's time goes besides products, the three dearest operators."""
    busiest = machine.busiest(lambda: play(fed, 1, memory=False), 40)
    rest = [r for r in busiest["rows"] if r["op"].split("::")[-1] not in machine.PRODUCTS][:3]
    return (f"{100 * busiest['products']:.0f} % products; "
            + ", ".join(f"{r['op'].removeprefix('aten::')} {100 * r['share']:.0f} % "
                        f"({r['calls']})" for r in rest))


def lines(rows: Sequence[Row], pairs: int) -> list[str]:
    """Return the table, dearest for its FLOPs first, and who is over the bound and why."""
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    rows = sorted(rows, key=lambda r: -(r["over"] or 0))
    out = [f"tiny, fp32, four clients, one round, median of {pairs} pairs, torch "
           f"{torch.__version__}, one thread, load average {machine.load():.0f}", "",
           "| method | beside FedAvg with | MFLOP, formula | MFLOP, counted | x FedAvg, formula | "
           "x FedAvg, counted | x FedAvg, CPU time | CPU time / counted |",
           "|---|---|---:|---:|---:|---:|---:|---:|"]
    for r in rows:
        predicted = f"{r['predicted'] / 1e6:.1f}" if r["predicted"] else "-"
        out.append(
            f"| {r['method']} | {r['beside']} | {predicted} | {r['counted'] / 1e6:.1f} | "
            f"{number(r['predicted_ratio'])} | {number(r['counted_ratio'])} | "
            f"{r['cpu_ratio']:.2f} | {number(r['over'])} |")
    over = [f"- {r['method']}, {r['over']:.1f}: {r['reason']}" for r in rows if "reason" in r]
    return [*out, "", f"Over {MOST:g} times what the counted FLOPs predict: "
            f"{'none' if not over else ''}".rstrip(), *over]
