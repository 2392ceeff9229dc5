"""The table of invariants, and ``run``: which of them a trainer keeps.

Written once, run over every trainer (docs/architecture.md): a new method is enrolled
by existing. A method for which one cannot hold says so on its class, with the reason:
``exempt = {"G6": "clients draw their own noise"}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvlm.check import messages, training, weights
from fedvlm.check.compare import Broken
from fedvlm.check.world import CheckWorld
from fedvlm.core.errors import failure_text, own_line
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.trainer import Trainer

Check = Callable[[CheckWorld, type[Trainer]], None]


@dataclass(frozen=True)
class Invariant:
    """One statement about every method, and the functions that raise ``Broken`` if it fails."""

    statement: str
    checks: tuple[Check, ...]

    def __call__(self, world: CheckWorld, trainer: type[Trainer]) -> None:
        """Try it.

        Raises:
            Broken: it does not hold, or the trainer fails in the attempt.
        """
        for check in self.checks:
            try:
                check(world, trainer)
            except Broken:
                raise
            except Exception as error:
                text = failure_text(error).removesuffix(" (--debug shows the traceback)")
                line = own_line(error)
                raise Broken(text if line in text else text + line) from error


@dataclass(frozen=True)
class Verdict:
    """What became of one invariant: ``state`` is ``ok``, ``broken`` or ``exempt``."""

    name: str
    statement: str
    state: str
    detail: str = ""


INVARIANTS: dict[str, Invariant] = {
    "G1": Invariant("only shared tensors and declared extras travel, and every byte is counted",
                    (messages.g1_messages,)),
    "G2": Invariant("client work leaves the server's state alone", (messages.g2_server_untouched,)),
    "G3": Invariant("the order of clients has no effect, and nothing leaks from one client to "
                    "the next",
                    (messages.g3_order, messages.shuffled_server)),
    "G4": Invariant("with a learning rate of zero nothing changes", (training.g4_no_rate,)),
    "G5": Invariant("one client with full batches is centralised SGD", (training.g5_centralised,)),
    "G6": Invariant("identical clients: the server's model equals what each of them sent",
                    (messages.g6_identical,)),
    "G7": Invariant("only the ratio of the clients' weights counts", (messages.g7_weights,)),
    "G8": Invariant("save, load, continue: bit-identical to an uninterrupted run",
                    (training.g8_resume,)),
    "G9": Invariant("backbone weights and BatchNorm statistics never "
                    "change", (training.g9_frozen,)),
    "G10": Invariant("every trainable tensor has exactly one group; any other tensor is refused",
                     (messages.g10_groups,)),
    "G11": Invariant("clients smaller than a batch still train", (training.g11_small_clients,)),
    "G12": Invariant("the seed alone determines the results; evaluation does not change training",
                     (training.g12_seeds,)),
    "G13": Invariant("stacked, packed and cached computation equals the plain computation",
                     (training.g13_fast_paths, training.g13_class_order)),
    "G14": Invariant("a number that is not finite is named (client, round) and handled by policy",
                     (training.g14_non_finite,)),
    "G15": Invariant("a client's work has no side effects: done twice it gives the same bits",
                     (training.g15_pure,)),
    "G16": Invariant("with unequal clients the server's tensors are the declared means of what "
                     "was sent", (weights.g16_weights,)),
}


def exemption_mistakes(trainer: type[Trainer]) -> dict[str, str]:
    """Return what is wrong with a trainer's ``exempt``, by its key; empty when all is well."""
    wrong = {}
    for name, reason in trainer.exempt.items():
        if name not in INVARIANTS:
            wrong[name] = f"exempt: '{name}' is not an invariant ({', '.join(INVARIANTS)})"
        elif not str(reason).strip():
            wrong[name] = f"exempt from {name} without a reason"
    return wrong


def run(
    spec: str | type[Trainer], opts: Sequence[str] = (), world: CheckWorld | None = None,
    yaml: Path | None = None, exempt: Mapping[str, str] | None = None,
) -> list[Verdict]:
    """Try every invariant on a trainer.

    Args:
        spec: a name, ``path.py:Class``, or the class itself.
        opts: ``["TRAINER.X.Y", "value", ...]`` for its own options.
        world: reused where given (``opts`` and ``yaml`` are then the world's).
        yaml: its config file; default: the one of its name in ``configs/trainers``.
        exempt: further invariants that do not hold, with their reasons.

    Raises:
        ConfigError: no such trainer or option, or an invariant that cannot be exempted.
    """
    trainer = load_trainer(spec) if isinstance(spec, str) else spec
    if exempt:
        trainer = type(trainer.__name__, (trainer,), {
            "__module__": trainer.__module__, "exempt": {**trainer.exempt, **exempt}})
    world = world or CheckWorld(opts, yaml=yaml)
    world.config(trainer)  # wrong options are the user's mistake, not a broken invariant
    wrong = exemption_mistakes(trainer)
    verdicts = [Verdict(n, "exemptions are declared", "broken", what)
             for n, what in wrong.items() if n not in INVARIANTS]
    for name, invariant in INVARIANTS.items():
        if name in wrong:
            verdicts.append(Verdict(name, invariant.statement, "broken", wrong[name]))
        elif name in trainer.exempt:
            verdicts.append(Verdict(name, invariant.statement, "exempt", trainer.exempt[name]))
        else:
            verdicts.append(_verdict(name, invariant, world, trainer))
    return verdicts


def _verdict(name: str, invariant: Invariant, world: CheckWorld, trainer: type[Trainer]) -> Verdict:
    try:
        invariant(world, trainer)
    except Broken as error:
        return Verdict(name, invariant.statement, "broken", str(error))
    return Verdict(name, invariant.statement, "ok")
