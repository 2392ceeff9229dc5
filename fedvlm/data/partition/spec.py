"""What a partition depends on beside the data set: one ``PartitionSpec``.

Who holds what: partitions as pure functions of labels, domains and a ``PartitionSpec``.

Here: the plain data, iid, and by domain. ``partition_classes.py`` deals classes,
``partition_dirichlet.py``, ``partition_superclass.py`` and ``partition_quantity.py`` skew.
All randomness is a stream of (seed, "partition", ...); the same spec gives the same partition.

What the skewed partitions share: proportions, proportions to whole images, and the dealing.

A table of proportions or numbers is ``[C, K]``: classes by clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.core.rng import numpy_stream
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


@dataclass(frozen=True)
class Pool:
    """Labels and domains of the images at hand, by part; positions are into these arrays.

    Label -1 stands for an image that takes no part; domains are numbers into ``domain_names``.
    """

    labels: Mapping[str, IntArray]
    num_classes: int
    domains: Mapping[str, IntArray] = field(default_factory=dict)
    domain_names: Sequence[str] = ()
    class_names: Sequence[str] = ()

    def select(self, positions: Mapping[str, IntArray]) -> Pool:
        """Return the pool of the given positions only."""
        return Pool(
            {part: self.labels[part][positions[part]] for part in PARTS},
            self.num_classes,
            {part: d[positions[part]] for part, d in self.domains.items()},
            self.domain_names,
            self.class_names,
        )

    def called(self, label: int) -> str:
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

    def through(self, positions: Mapping[str, IntArray]) -> Partition:
        """Translate positions of a selected pool into those of the pool it was selected from."""
        return Partition.of({p: [positions[p][i] for i in self.part(p)] for p in PARTS})

    def without(self, bad: Mapping[str, set[int]]) -> Partition:
        """Leave out the given positions."""
        return Partition.of(
            {p: [[i for i in a if int(i) not in bad[p]] for a in self.part(p)] for p in PARTS}
        )

    def used(self) -> dict[str, IntArray]:
        """Return by part the sorted positions that some client holds."""
        empty = np.zeros(0, dtype=np.int64)
        return {p: np.unique(np.concatenate([empty, *self.part(p)])) for p in PARTS}


def _frozen(positions: Any) -> IntArray:
    array = np.sort(np.asarray(positions, dtype=np.int64).reshape(-1))
    array.setflags(write=False)
    return array


def fewer_clients(limit: int) -> str:
    """Return ``FED.CLIENTS 1 to 5`` or ``FED.CLIENTS 1``."""
    return "FED.CLIENTS 1" if limit <= 1 else f"FED.CLIENTS 1 to {limit}"


def no_images(part: str, where: str = "") -> str:
    """Return the message for a part of the set, or of one of its domains, without any image."""
    return (
        f"there are no {part} images{where} to deal; use another DATASET.SPLIT_FILE or "
        "DATASET.SUBSAMPLE_CLASSES" + (", or FED.HELD_OUT_DOMAIN to leave it out" if where else "")
    )


def iid(pool: Pool, spec: PartitionSpec) -> Partition:
    """Deal a random permutation of each part into K nearly equal shares (the family's ``homo``).

    Raises:
        ConfigError: fewer training or test images than clients.
    """
    for part in ("train", "test"):
        n = len(pool.labels[part])
        if not n:
            raise ConfigError(no_images(part))
        if n < spec.clients:
            raise ConfigError(
                f"FED.CLIENTS {spec.clients}: there are only {n} {part} images to deal; "
                f"use {fewer_clients(n)}"
            )
    return Partition.of(
        {
            part: np.array_split(
                numpy_stream(spec.seed, "partition", "iid", part).permutation(len(labels)),
                spec.clients,
            )
            for part, labels in pool.labels.items()
        }
    )


def domain_number(name: str, domain_names: Sequence[str], dataset: str) -> int | None:
    """Return the number of FED.HELD_OUT_DOMAIN, None where it is empty.

    Raises:
        ConfigError: no such domain, or none would be left.
    """
    if not name:
        return None
    known = [fold(domain) for domain in domain_names]
    if fold(name) not in known:
        names = f"known: {', '.join(domain_names)}" if known else f"{dataset} has no domains"
        raise ConfigError(
            f"unknown FED.HELD_OUT_DOMAIN '{name}'{did_you_mean(name, domain_names)} ({names})"
        )
    if len(known) < 2:
        raise ConfigError(
            f"FED.HELD_OUT_DOMAIN '{name}': {dataset} has no other domain; leave it empty"
        )
    return known.index(fold(name))


def clients_per_domain(spec: PartitionSpec, domain_names: Sequence[str]) -> int:
    """Return K divided by the number of domains.

    Raises:
        ConfigError: no domains, or K is not a multiple of their number.
    """
    n = len(domain_names)
    if n < 1:
        raise ConfigError(
            f"FED.PARTITION {spec.kind} needs a set with domains, and this one has none; "
            "use FED.PARTITION iid, disjoint or dirichlet"
        )
    if spec.clients % n:
        near = sorted({max(n, spec.clients // n * n), (spec.clients // n + 1) * n})
        raise ConfigError(
            f"FED.PARTITION {spec.kind}: {spec.clients} clients cannot be spread evenly over "
            f"{n} domains ({', '.join(domain_names[:6])}); use FED.CLIENTS "
            + " or ".join(map(str, near))
        )
    return spec.clients // n


def domain(pool: Pool, spec: PartitionSpec) -> Partition:
    """Give each domain to K/D clients; several clients of one domain share it iid.

    Clients are ordered by domain. The test share of a client is of its own domain.

    Raises:
        ConfigError: as ``clients_per_domain``, or a domain with too few images.
    """
    each = clients_per_domain(spec, pool.domain_names)
    shares: dict[str, list[IntArray]] = {part: [] for part in PARTS}
    for number, name in enumerate(pool.domain_names):
        for part in PARTS:
            mine = np.flatnonzero(pool.domains[part] == number)
            if part != "val" and len(mine) < each:
                if not len(mine):
                    raise ConfigError(no_images(part, f" of domain '{name}'"))
                raise ConfigError(
                    f"domain '{name}' has {len(mine)} {part} images for {each} clients; "
                    f"use FED.CLIENTS {len(pool.domain_names) * len(mine)}"
                )
            stream = numpy_stream(spec.seed, "partition", "domain", name, part)
            shares[part] += np.array_split(stream.permutation(mine), each)
    return Partition.of(shares)


FloatArray = NDArray[np.float64]
NEGLIGIBLE = 1e-12
HIGHEST_BETA = 1e12  # proportions are equal to 1e-6 there; numpy's draw overflows further up
_NEARLY = 1e-9  # 2.9999999999 images are 3


def check_enough(totals: Mapping[str, int], spec: PartitionSpec, clients: int, where: str) -> None:
    """Refuse too few images for ``spec.min_size`` training images and a test image each.

    Args:
        totals: images by part.
        where: words for the message, `` of domain 'x'`` or nothing.

    Raises:
        ConfigError: says what to change.
    """
    for part, least in (("train", spec.min_size), ("test", 1)):
        if not totals[part]:
            raise ConfigError(no_images(part, where))
        if totals[part] < least * clients:
            raise ConfigError(
                f"{totals[part]} {part} images{where} cannot give {clients} clients "
                f"{least} each; use fewer FED.CLIENTS"
                + (" or a lower FED.MIN_SIZE" if part == "train" and spec.min_size > 1 else "")
            )


def proportions(beta: float, n: int, rng: np.random.Generator) -> FloatArray:
    """Draw ``[n]`` proportions from Dir(beta); where the draw underflows its limit, one of n."""
    row = np.nan_to_num(rng.dirichlet(np.full(n, min(beta, HIGHEST_BETA))))
    if row.sum() < NEGLIGIBLE:
        row[:] = 0.0
        row[rng.integers(n)] = 1.0
    return np.asarray(row / row.sum(), dtype=np.float64)


def cut_counts(shares: FloatArray, counts: IntArray) -> IntArray:
    """Return whole numbers of images ``[C, K]``: cumulative shares times counts, cut down."""
    ends = np.floor(np.cumsum(shares, axis=1) * counts[:, None] + _NEARLY).astype(np.int64)
    ends[:, -1] = counts
    ends = np.minimum(ends, counts[:, None])
    return np.diff(ends, axis=1, prepend=0)


def even_cut(shares: FloatArray, counts: IntArray, least: int = 0) -> IntArray:
    """Return whole numbers of images ``[C, K]`` that keep each client's total near its share.

    The images of a class that rounding down leaves go to the clients to which the classes so far
    owe most. A client gets nothing of a class of which its share is 0.

    Args:
        shares: rows that sum to 1.
        counts: images per class ``[C]``.
        least: images first given to each client with a share, where the class has enough.
    """
    cut = np.zeros(shares.shape, dtype=np.int64)
    owed = np.zeros(shares.shape[1])
    for c, row in enumerate(shares):
        holders = row > 0
        each = least if counts[c] >= least * holders.sum() else 0
        left = counts[c] - each * holders.sum()
        whole = np.floor(row * left + _NEARLY).astype(np.int64)
        owed += row * left - whole
        next_ = np.argsort(np.where(holders, -owed, np.inf), kind="stable")[: left - whole.sum()]
        whole[next_] += 1
        owed[next_] -= 1
        cut[c] = whole + each * holders
    return cut


def none_empty(cut: IntArray, shares: FloatArray) -> IntArray:
    """Return the table with an image moved to each client that has none, where there is one.

    The image is of a class in which the client has a share, and comes from the richest client
    that holds it and keeps another.
    """
    cut = cut.copy()
    for client in np.flatnonzero(cut.sum(axis=0) == 0):
        able = (cut > 0) & (shares[:, client] > 0)[:, None] & (cut.sum(axis=0) > 1)
        if able.any():
            giver = int(np.where(able.any(axis=0), cut.sum(axis=0), 0).argmax())
            c = int(np.where(able[:, giver], cut[:, giver], 0).argmax())
            cut[c, giver] -= 1
            cut[c, client] += 1
    return cut


def deal(
    labels: Mapping[str, IntArray], sizes: Mapping[str, IntArray], rng: np.random.Generator
) -> dict[str, list[IntArray]]:
    """Shuffle each class and give every client its number of images of it.

    Args:
        sizes: by part, whole numbers ``[C, K]`` whose rows sum to the images of the class.

    Returns:
        By part, the positions of each client.
    """
    dealt: dict[str, list[IntArray]] = {}
    for part in PARTS:
        mine: list[list[IntArray]] = [[] for _ in range(sizes[part].shape[1])]
        for c, row in enumerate(sizes[part]):
            order = rng.permutation(np.flatnonzero(labels[part] == c))
            for j, piece in enumerate(np.split(order, np.cumsum(row)[:-1])):
                mine[j].append(piece)
        empty = np.zeros(0, dtype=np.int64)
        dealt[part] = [np.concatenate([empty, *pieces]) for pieces in mine]
    return dealt
