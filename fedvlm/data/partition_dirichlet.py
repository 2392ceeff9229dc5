"""Label skew: the images of each class are cut by proportions drawn from Dir(beta * 1_K).

Train, validation and test of a class are cut with the same proportions, so a client is tested on
what it trained on (proportions: Hsu et al. 2019). As in the federated CLIP repositories, a client
that already holds N/K training images gets nothing of later classes, and draws are repeated until
each client has its minimum. Here the tries are bounded, so it always ends.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedvlm.data.datum import PARTS, IntArray
from fedvlm.data.partition import Partition, PartitionSpec, Pool, clients_per_domain
from fedvlm.errors import ConfigError
from fedvlm.rng import numpy_stream

FloatArray = NDArray[np.float64]
TRIES = 2000
_NEGLIGIBLE = 1e-12


def dirichlet(pool: Pool, spec: PartitionSpec) -> Partition:
    """Cut every class over all K clients.

    Each client gets at least ``spec.min_size`` training images and one test image.

    Raises:
        ConfigError: too few images, or no draw met the minimum; says what to change.
    """
    stream = numpy_stream(spec.seed, "partition", "dirichlet")
    return Partition.of(_cut(pool.labels, pool.num_classes, spec, spec.clients, stream, ""))


def domain_dirichlet(pool: Pool, spec: PartitionSpec) -> Partition:
    """Cut every class inside each domain over that domain's K/D clients, ordered by domain.

    Raises:
        ConfigError: as ``dirichlet`` and ``clients_per_domain``.
    """
    each = clients_per_domain(spec, pool.domain_names)
    shares: dict[str, list[IntArray]] = {part: [] for part in PARTS}
    for number, name in enumerate(pool.domain_names):
        mine = {part: np.flatnonzero(pool.domains[part] == number) for part in PARTS}
        labels = {part: pool.labels[part][mine[part]] for part in PARTS}
        stream = numpy_stream(spec.seed, "partition", "domain_dirichlet", name)
        cut = _cut(labels, pool.num_classes, spec, each, stream, f" of domain '{name}'")
        for part in PARTS:
            shares[part] += [mine[part][positions] for positions in cut[part]]
    return Partition.of(shares)


def _cut(
    labels: Mapping[str, IntArray],
    num_classes: int,
    spec: PartitionSpec,
    clients: int,
    rng: np.random.Generator,
    where: str,
) -> dict[str, list[IntArray]]:
    counts = {p: np.bincount(labels[p], minlength=num_classes) for p in PARTS}
    needed = {"train": spec.min_size, "test": 1}
    for part, least in needed.items():
        if counts[part].sum() < least * clients:
            raise ConfigError(
                f"{counts[part].sum()} {part} images{where} cannot give {clients} clients "
                f"{least} each; use fewer FED.CLIENTS"
                + (" or a lower FED.MIN_SIZE" if part == "train" and spec.min_size > 1 else "")
            )
    best = 0
    for _ in range(TRIES):
        shares = draw_shares(counts["train"], clients, spec.beta, rng)
        sizes = {p: cut_counts(shares, counts[p]).sum(axis=0) for p in needed}
        if all(sizes[p].min() >= least for p, least in needed.items()):
            return _deal(labels, shares, counts, rng)
        best = max(best, int(sizes["train"].min()))
    raise ConfigError(
        f"none of {TRIES} Dirichlet draws with FED.BETA {spec.beta:g} gave each of {clients} "
        f"clients{where} {spec.min_size} training images and a test image (best: smallest client "
        f"with {best}); raise FED.BETA, lower FED.MIN_SIZE or use fewer FED.CLIENTS"
    )


def draw_shares(
    train_counts: IntArray, clients: int, beta: float, rng: np.random.Generator
) -> FloatArray:
    """Return proportions ``[C, K]``: rows sum to 1, full clients (>= N/K) get 0.

    Args:
        train_counts: training images per class ``[C]``.
    """
    raw = rng.dirichlet(np.full(clients, beta), size=len(train_counts))
    cap = train_counts.sum() / clients
    held = np.zeros(clients, dtype=np.int64)
    shares = np.zeros((len(train_counts), clients))
    for c, count in enumerate(train_counts):
        open_ = held < cap
        if not open_.any():
            open_[:] = True
        row = np.where(open_, np.nan_to_num(raw[c]), 0.0)
        if row.sum() < _NEGLIGIBLE:  # all mass fell on full clients: draw among the open ones
            row[:] = 0.0
            row[open_] = np.nan_to_num(rng.dirichlet(np.full(int(open_.sum()), beta)))
        if row.sum() < _NEGLIGIBLE:  # beta so small that the draw underflows: its limit, one client
            row[rng.choice(np.flatnonzero(open_))] = 1.0
        shares[c] = row / row.sum()
        held += cut_counts(shares[c : c + 1], np.array([count]))[0]
    return shares


def cut_counts(shares: FloatArray, counts: IntArray) -> IntArray:
    """Return whole numbers of images ``[C, K]``: cumulative shares times counts, cut down."""
    ends = np.floor(np.cumsum(shares, axis=1) * counts[:, None] + 1e-9).astype(np.int64)
    ends[:, -1] = counts
    ends = np.minimum(ends, counts[:, None])
    return np.diff(ends, axis=1, prepend=0)


def _deal(
    labels: Mapping[str, IntArray],
    shares: FloatArray,
    counts: Mapping[str, IntArray],
    rng: np.random.Generator,
) -> dict[str, list[IntArray]]:
    clients = shares.shape[1]
    dealt: dict[str, list[IntArray]] = {}
    for part in PARTS:
        sizes = cut_counts(shares, counts[part])
        mine: list[list[IntArray]] = [[] for _ in range(clients)]
        for c in range(len(sizes)):
            order = rng.permutation(np.flatnonzero(labels[part] == c))
            for j, piece in enumerate(np.split(order, np.cumsum(sizes[c])[:-1])):
                mine[j].append(piece)
        empty = np.zeros(0, dtype=np.int64)
        dealt[part] = [np.concatenate([empty, *pieces]) for pieces in mine]
    return dealt
