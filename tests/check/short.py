"""Options under which a method's invariants and parity are tried where its own take seconds.

They cut loops that end by a count anyway; what is computed stays the same.
"""

from __future__ import annotations

from fedvlm.check.world import CheckWorld

OPTIONS = {
    "fedala": ("TRAINER.FEDALA.MAX_EPOCHS", "4"),  # passes until mixing weights rest: 50
    "thorki": ("TRAINER.THORKI.FUSION_STEPS", "10"),  # of the gate: 100
    "heart_pfl": ("TRAINER.HEART-PFL.AKT_STEPS", "12"),  # of the server: 20; its gate looks at 10
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
