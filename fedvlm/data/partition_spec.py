"""What a partition depends on beside the data set: one ``PartitionSpec``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedvlm.errors import ConfigError

# Which options change the result, by kind; the others are not part of a partition's identity.
_USES = {
    "iid": (),
    "disjoint": ("repeat_rate", "legacy"),
    "n_classes": ("classes_per_client",),
    "dirichlet": ("beta", "min_size"),
    "superclass_dirichlet": ("beta", "beta_fine", "min_size"),
    "quantity": ("beta", "min_size"),
    "domain": (),
    "domain_dirichlet": ("beta", "min_size"),
}


@dataclass(frozen=True)
class PartitionSpec:
    """Everything that a partition depends on beside the data set.

    Attributes:
        kind: a name of ``plan.PARTITIONS``.
        clients: number of clients, K.
        seed: DATA_SEED.
        beta: concentration of the Dirichlet; small is skewed.
        beta_fine: the same inside a superclass (superclass_dirichlet).
        min_size: training images each client must get (Dirichlet kinds and quantity).
        classes_per_client: classes that each client holds (n_classes).
        repeat_rate: share of the classes that all clients hold (disjoint).
        legacy: the family's class map of 2023 (disjoint).
        shots, val_shots: images per class, negative for all.
        half: all, base or new classes.
        held_out: name of the domain that no client holds; empty for none.
    """

    kind: str
    clients: int
    seed: int = 0
    beta: float = 0.3
    beta_fine: float = 10.0
    min_size: int = 1
    classes_per_client: int = 2
    repeat_rate: float = 0.0
    legacy: bool = False
    shots: int = -1
    val_shots: int = -1
    half: str = "all"
    held_out: str = ""

    def __post_init__(self) -> None:
        betas = (("FED.BETA", self.beta), ("FED.BETA_FINE", self.beta_fine))
        each = self.classes_per_client
        checks = (
            (self.clients >= 1, f"FED.CLIENTS is {self.clients}; it must be at least 1"),
            *((b > 0 and np.isfinite(b), f"{key} is {b}; it must be > 0") for key, b in betas),
            (self.min_size >= 1, f"FED.MIN_SIZE is {self.min_size}; it must be at least 1"),
            (each >= 1, f"FED.CLASSES_PER_CLIENT is {each}; it must be at least 1"),
            (0 <= self.repeat_rate <= 1, f"FED.REPEAT_RATE is {self.repeat_rate}; it is 0 to 1"),
            (self.shots != 0, "DATASET.NUM_SHOTS is 0; give at least 1, or -1 for all images"),
            (
                not (self.legacy and self.repeat_rate > 0),
                "FED.LEGACY and FED.REPEAT_RATE cannot be combined; set one of them to its default",
            ),
        )
        for right, message in checks:
            if not right:
                raise ConfigError(message)

    def identity(self) -> dict[str, Any]:
        """Return the fields that change the result of this kind, ready for JSON."""
        always = ("kind", "clients", "seed", "shots", "val_shots", "half")
        keep = {*always, *_USES.get(self.kind, ()), *(["held_out"] if self.held_out else [])}
        return {name: value for name, value in asdict(self).items() if name in keep}
