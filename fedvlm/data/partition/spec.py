"""The words of every partition: what it depends on, what is dealt, and who got what.

A partition is a pure function of an ``ImagePool`` and a ``PartitionSpec``. All randomness is a
stream of (seed, "partition", ...); the same spec gives the same partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from fedvlm.core.errors import ConfigError
from fedvlm.data.datum import PARTS, IntArray

# Which options change the result, by kind; the others are not part of a partition's identity.
_USES = {
    "iid": (),
    "disjoint": ("repeat_rate", "legacy"),
    "n_classes": ("classes_per_client",),
    "dirichlet": ("beta", "min_size"),
    "superclass_dirichlet": ("beta", "beta_fine", "min_size"),
    "quantity": ("beta", "min_size"),
    "domain": (),
    "natural": (),
    "domain_dirichlet": ("beta", "min_size"),
}


def idle_options(kind: str) -> dict[str, list[str]]:
    """Return the options that a kind of partition does not use -> the kinds that do."""
    options = {option for used in _USES.values() for option in used} - {*_USES[kind]}
    return {option: [k for k, used in _USES.items() if option in used] for option in options}


@dataclass(frozen=True)
class PartitionSpec:
    """Everything that a partition depends on beside the data set.

    Attributes:
        kind: a name of ``kinds.PARTITIONERS``.
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
        server_holdout: images per class that no client gets.
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
    server_holdout: int = 0

    def __post_init__(self) -> None:
        betas = (("FED.BETA", self.beta), ("FED.BETA_FINE", self.beta_fine))
        each = self.classes_per_client
        checks = (
            (self.clients >= 1, f"FED.CLIENTS is {self.clients}; it must be at least 1"),
            *((b > 0 and np.isfinite(b), f"{key} is {b}; it must be > 0") for key, b in betas),
            (self.min_size >= 1, f"FED.MIN_SIZE is {self.min_size}; it must be at least 1"),
            (each >= 1, f"FED.CLASSES_PER_CLIENT is {each}; it must be at least 1"),
            (
                self.server_holdout >= 0,
                f"DATASET.SERVER_HOLDOUT is {self.server_holdout}; it must be at least 0",
            ),
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
        rare = [name for name in ("held_out", "server_holdout") if getattr(self, name)]
        keep = {*always, *_USES.get(self.kind, ()), *rare}
        return {name: value for name, value in asdict(self).items() if name in keep}


@dataclass(frozen=True)
class ImagePool:
    """Labels and domains of the images at hand, by part; positions are into these arrays.

    Label -1 stands for an image that takes no part; domains are numbers into ``domain_names``.
    ``clients`` are numbers into ``client_names``, -1 for an image that no client holds, and
    ``groups`` number what is never divided; both are empty where the data do not say them.
    ``kind`` is what messages call a sample (``DatasetBase.kind``).
    """

    labels: Mapping[str, IntArray]
    num_classes: int
    domains: Mapping[str, IntArray] = field(default_factory=dict)
    domain_names: Sequence[str] = ()
    class_names: Sequence[str] = ()
    clients: Mapping[str, IntArray] = field(default_factory=dict)
    client_names: Sequence[str] = ()
    groups: Mapping[str, IntArray] = field(default_factory=dict)
    kind: str = "image"

    def select(self, positions: Mapping[str, IntArray]) -> ImagePool:
        """Return the pool of the given positions only."""
        def of(arrays: Mapping[str, IntArray]) -> dict[str, IntArray]:
            return {part: array[positions[part]] for part, array in arrays.items()}

        return replace(self, labels=of(self.labels), domains=of(self.domains),
                       clients=of(self.clients), groups=of(self.groups))

    def class_name(self, label: int) -> str:
        """Return a class by its name, or by its number where names are not known."""
        return f"'{self.class_names[label]}'" if len(self.class_names) else str(label)


@dataclass(frozen=True)
class Partition:
    """One sorted, read-only int64 array of positions per client and part."""

    train: tuple[IntArray, ...]
    val: tuple[IntArray, ...]
    test: tuple[IntArray, ...]

    @staticmethod
    def of(shares: Mapping[str, Sequence[Any]]) -> Partition:
        """Build from ``{part: [positions of client 0, ...]}``."""
        return Partition(*(tuple(_frozen(p) for p in shares[part]) for part in PARTS))

    def part(self, name: str) -> tuple[IntArray, ...]:
        """Return the arrays of ``train``, ``val`` or ``test``."""
        return {"train": self.train, "val": self.val, "test": self.test}[name]

    def translate(self, positions: Mapping[str, IntArray]) -> Partition:
        """Translate positions of a selected pool into those of the pool it was selected from."""
        return Partition.of({p: [positions[p][i] for i in self.part(p)] for p in PARTS})

    def drop(self, positions: Mapping[str, set[int]]) -> Partition:
        """Leave out the given positions."""
        return Partition.of(
            {p: [[i for i in a if int(i) not in positions[p]] for a in self.part(p)] for p in PARTS}
        )

    def union(self) -> dict[str, IntArray]:
        """Return by part the sorted positions that some client holds."""
        empty = np.zeros(0, dtype=np.int64)
        return {p: np.unique(np.concatenate([empty, *self.part(p)])) for p in PARTS}


def _frozen(positions: Any) -> IntArray:
    array = np.sort(np.asarray(positions, dtype=np.int64).reshape(-1))
    array.setflags(write=False)
    return array
