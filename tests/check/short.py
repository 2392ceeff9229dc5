"""Options under which a method's invariants and parity are tried where its own take seconds.

They cut loops that end by a count anyway. What a loop does before its count stays in them: some of
FedALA's clients rest after 11 passes while others go on, HEART-PFL's gate looks twice (after steps
10 and 12), pFedMe's personal model takes more than one step.
"""

from __future__ import annotations

from fedvlm.check.world import CheckWorld

OPTIONS = {
    "fedala": ("TRAINER.FEDALA.MAX_EPOCHS", "12"),  # passes until mixing weights rest: 50
    "thorki": ("TRAINER.THORKI.FUSION_STEPS", "10"),  # of the gate: 100
    "heart_pfl": ("TRAINER.HEART-PFL.AKT_STEPS", "12"),  # of the server: 20
    "fedpft": ("TRAINER.FEDPFT.HEAD_EPOCHS", "5"),  # of the server: 50
    "pfedme": ("TRAINER.PFEDME.STEPS", "2"),  # of the personal model per batch: 5
}


class Worlds:
    """The small world, and one for each method with options of its own; each keeps its runs."""

    def __init__(self) -> None:
        self._plain = CheckWorld()
        self._own: dict[str, CheckWorld] = {}

    def of(self, trainer: str) -> CheckWorld:
        """Return the world of a method."""
        if trainer not in OPTIONS:
            return self._plain
        if trainer not in self._own:
            self._own[trainer] = CheckWorld(OPTIONS[trainer])
        return self._own[trainer]
