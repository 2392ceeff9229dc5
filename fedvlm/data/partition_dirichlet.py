"""Label skew: the images of each class are cut by proportions drawn from Dir(beta * 1_K).

Train, validation and test of a class are cut with the same proportions, so a client is tested on
what it trained on (proportions: Hsu et al. 2019). As in the federated CLIP repositories, a client
that already holds N/K training images gets nothing of later classes, and draws are repeated until
each client has its minimum. Here the tries are bounded, so it always ends.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedvlm.data.datum import PARTS, IntArray
from fedvlm.data.partition import Partition, Pool, clients_per_domain
from fedvlm.data.partition_cut import (
    HIGHEST_BETA,
    NEGLIGIBLE,
    FloatArray,
    check_enough,
    cut_counts,
    deal,
)
from fedvlm.data.partition_spec import PartitionSpec
from fedvlm.errors import ConfigError
from fedvlm.rng import numpy_stream

TRIES = 2000
_LEAST_TRIES, _CELLS = 200, 2_000_000  # of large tables fewer draws: seconds, not minutes


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
    check_enough({p: int(counts[p].sum()) for p in PARTS}, spec, clients, where)
    needed = {"train": spec.min_size, "test": 1}
    best = (0, 0)
    tries = min(TRIES, max(_LEAST_TRIES, _CELLS // (num_classes * clients)))
    for _ in range(tries):
        shares = draw_shares(counts["train"], clients, spec.beta, rng)
        sizes = {p: cut_counts(shares, counts[p]).sum(axis=0) for p in needed}
        if all(sizes[p].min() >= least for p, least in needed.items()):
            return deal(labels, {p: cut_counts(shares, counts[p]) for p in PARTS}, rng)
        best = max(best, (int(sizes["train"].min()), int(sizes["test"].min())))
    raise ConfigError(
        f"none of {tries} Dirichlet draws with FED.BETA {spec.beta:g} gave each of {clients} "
        f"clients{where} {spec.min_size} training images and a test image (best: at least "
        f"{best[0]} and {best[1]}); raise FED.BETA, lower FED.MIN_SIZE or use fewer FED.CLIENTS"
    )


def draw_shares(
    train_counts: IntArray, clients: int, beta: float, rng: np.random.Generator
) -> FloatArray:
    """Return proportions ``[C, K]``: rows sum to 1, full clients (>= N/K) get 0.

    Args:
        train_counts: training images per class ``[C]``.
    """
    beta = min(beta, HIGHEST_BETA)
    raw = rng.dirichlet(np.full(clients, beta), size=len(train_counts))
    cap = train_counts.sum() / clients
    held = np.zeros(clients, dtype=np.int64)
    shares = np.zeros((len(train_counts), clients))
    for c, count in enumerate(train_counts):
        open_ = held < cap
        if not open_.any():
            open_[:] = True
        row = np.where(open_, np.nan_to_num(raw[c]), 0.0)
        if row.sum() < NEGLIGIBLE:  # all mass fell on full clients: draw among the open ones
            row[:] = 0.0
            row[open_] = np.nan_to_num(rng.dirichlet(np.full(int(open_.sum()), beta)))
        if row.sum() < NEGLIGIBLE:  # beta so small that the draw underflows: its limit, one client
            row[rng.choice(np.flatnonzero(open_))] = 1.0
        shares[c] = row / row.sum()
        held += cut_counts(shares[c : c + 1], np.array([count]))[0]
    return shares
