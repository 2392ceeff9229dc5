"""Skew drawn from Dirichlet distributions: of labels, of labels by superclass, of quantity.

``dirichlet`` and ``domain_dirichlet`` cut the images of each class by proportions drawn from
Dir(beta * 1_K). Train, validation and test of a class are cut with the same proportions, so a
client is tested on what it trained on (proportions: Hsu et al. 2019). As in the federated CLIP
repositories, a client that already holds N/K training images gets nothing of later classes, and
draws are repeated until each client has its minimum. Here the tries are bounded, so it always ends.

``superclass_dirichlet`` uses CIFAR-100's superclasses (the family's ``noniid-labeldir100``). Client
by client: superclasses by Dir(beta), classes inside by Dir(beta_fine), then N/K training images
without replacement, the proportions renormalised when a class is used up. Clients are thus of equal
size, and the last ones get what the others leave. Departure: the family draws from train and test
together and splits by index, so clients are tested on classes they never trained on. Here
validation and test images of a class are cut like its training images.

``quantity`` gives clients of very different size, all with the set's own mix of classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedvlm.core.errors import ConfigError
from fedvlm.core.rng import numpy_stream
from fedvlm.data.catalog import superclasses_of
from fedvlm.data.datum import PARTS, IntArray
from fedvlm.data.partition.deal import (
    HIGHEST_BETA,
    NEGLIGIBLE,
    FloatArray,
    check_enough,
    cut_counts,
    cut_evenly,
    deal,
    fill_empty_clients,
    proportions,
)
from fedvlm.data.partition.even import clients_per_domain
from fedvlm.data.partition.spec import ImagePool, Partition, PartitionSpec

_TRIES = 2000
_LEAST_TRIES, _CELLS = 200, 2_000_000  # of large tables fewer draws: seconds, not minutes


def dirichlet(pool: ImagePool, spec: PartitionSpec) -> Partition:
    """Cut every class over all K clients.

    Each client gets at least ``spec.min_size`` training images and one test image.

    Raises:
        ConfigError: too few images, or no draw met the minimum; says what to change.
    """
    stream = numpy_stream(spec.seed, "partition", "dirichlet")
    return Partition.of(_cut(pool.labels, pool, spec, spec.clients, stream, ""))


def domain_dirichlet(pool: ImagePool, spec: PartitionSpec) -> Partition:
    """Cut every class inside each domain over that domain's K/D clients, ordered by domain.

    Raises:
        ConfigError: as ``dirichlet`` and ``clients_per_domain``.
    """
    each = clients_per_domain(spec, pool.domain_names)
    shares: dict[str, list[IntArray]] = {part: [] for part in PARTS}
    for number, name in enumerate(pool.domain_names):
        inside = {part: np.flatnonzero(pool.domains[part] == number) for part in PARTS}
        labels = {part: pool.labels[part][inside[part]] for part in PARTS}
        stream = numpy_stream(spec.seed, "partition", "domain_dirichlet", name)
        clients = _cut(labels, pool, spec, each, stream, f" of domain '{name}'")
        for part in PARTS:
            shares[part] += [inside[part][positions] for positions in clients[part]]
    return Partition.of(shares)


def _cut(
    labels: Mapping[str, IntArray],
    pool: ImagePool,
    spec: PartitionSpec,
    clients: int,
    rng: np.random.Generator,
    where: str,
) -> dict[str, list[IntArray]]:
    counts = {p: np.bincount(labels[p], minlength=pool.num_classes) for p in PARTS}
    check_enough({p: int(counts[p].sum()) for p in PARTS}, spec, clients, where, pool.kind)
    needed = {"train": spec.min_size, "test": 1}
    best = (0, 0)
    tries = min(_TRIES, max(_LEAST_TRIES, _CELLS // (pool.num_classes * clients)))
    for _ in range(tries):
        shares = draw_shares(counts["train"], clients, spec.beta, rng)
        sizes = {p: cut_counts(shares, counts[p]).sum(axis=0) for p in needed}
        if all(sizes[p].min() >= least for p, least in needed.items()):
            return deal(labels, {p: cut_counts(shares, counts[p]) for p in PARTS}, rng)
        best = max(best, (int(sizes["train"].min()), int(sizes["test"].min())))
    raise ConfigError(
        f"none of {tries} Dirichlet draws with FED.BETA {spec.beta:g} gave each of {clients} "
        f"clients{where} {spec.min_size} training {pool.kind}s and a test {pool.kind} (best: at "
        f"least {best[0]} and {best[1]}); raise FED.BETA, lower FED.MIN_SIZE or use fewer "
        "FED.CLIENTS"
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
    totals = np.zeros(clients, dtype=np.int64)
    shares = np.zeros((len(train_counts), clients))
    for c, count in enumerate(train_counts):
        open_ = totals < cap
        if not open_.any():
            open_[:] = True
        row = np.where(open_, np.nan_to_num(raw[c]), 0.0)
        if row.sum() < NEGLIGIBLE:  # all mass fell on full clients: draw among the open ones
            row[:] = 0.0
            row[open_] = np.nan_to_num(rng.dirichlet(np.full(int(open_.sum()), beta)))
        if row.sum() < NEGLIGIBLE:  # beta so small that the draw underflows: its limit, one client
            row[rng.choice(np.flatnonzero(open_))] = 1.0
        shares[c] = row / row.sum()
        totals += cut_counts(shares[c : c + 1], np.array([count]))[0]
    return shares


def superclass_dirichlet(pool: ImagePool, spec: PartitionSpec) -> Partition:
    """Draw each client's images by superclass, then by class.

    A client has a test image unless its classes have fewer than clients that hold them.

    Raises:
        ConfigError: classes without known superclasses, or too few images.
    """
    groups = superclasses_of(pool.class_names)
    counts = {p: np.bincount(pool.labels[p], minlength=pool.num_classes) for p in PARTS}
    check_enough({p: int(counts[p].sum()) for p in PARTS}, spec, spec.clients, "", pool.kind)
    rng = numpy_stream(spec.seed, "partition", "superclass_dirichlet")
    train = draw_profiles(counts["train"], groups, spec, rng)
    shares = np.full(train.shape, 1 / spec.clients)  # of classes without a training image
    trained = counts["train"] > 0
    shares[trained] = train[trained] / counts["train"][trained, None]
    test = fill_empty_clients(cut_evenly(shares, counts["test"]), shares)
    sizes = {"train": train, "val": cut_evenly(shares, counts["val"]), "test": test}
    return Partition.of(deal(pool.labels, sizes, rng))


def draw_profiles(
    counts: IntArray, groups: IntArray, spec: PartitionSpec, rng: np.random.Generator
) -> IntArray:
    """Return training images per class and client ``[C, K]``; clients' totals differ by 1 at most.

    Args:
        counts: images per class ``[C]``; every one is dealt.
        groups: superclass of each class ``[C]``.
    """
    left = counts.copy()
    table = np.zeros((len(counts), spec.clients), dtype=np.int64)
    for client, share in enumerate(np.array_split(np.arange(counts.sum()), spec.clients)):
        profile = _profile(groups, counts > 0, spec, rng)
        while rest := len(share) - int(table[:, client].sum()):  # each turn uses up a class
            weight = np.where(left > 0, profile, 0.0)
            if weight.sum() < NEGLIGIBLE:  # nothing is left of its classes: others
                weight = profile = _profile(groups, left > 0, spec, rng)
            images = np.minimum(rng.multinomial(rest, weight / weight.sum()), left)
            table[:, client] += images
            left -= images
    return table


def _profile(
    groups: IntArray, open_: np.ndarray, spec: PartitionSpec, rng: np.random.Generator
) -> FloatArray:
    """Draw class proportions ``[C]`` over the open classes."""
    profile = np.zeros(len(groups))
    superclasses = np.unique(groups[open_])
    shares = proportions(spec.beta, len(superclasses), rng)
    for group, share in zip(superclasses, shares, strict=True):
        inside = np.flatnonzero(open_ & (groups == group))
        profile[inside] = share * proportions(spec.beta_fine, len(inside), rng)
    return profile


def quantity(pool: ImagePool, spec: PartitionSpec) -> Partition:
    """Cut a random permutation of each part by proportions drawn from Dir(beta * 1_K).

    The same proportions cut all parts. Each client first gets its minimum (``spec.min_size``
    training images, one test image) and the proportions share out the rest, so one draw is enough.

    Raises:
        ConfigError: too few images.
    """
    totals = {part: len(pool.labels[part]) for part in PARTS}
    check_enough(totals, spec, spec.clients, "", pool.kind)
    stream = numpy_stream(spec.seed, "partition", "quantity")
    row = np.maximum(proportions(spec.beta, spec.clients, stream), NEGLIGIBLE)
    shares = {}
    for part, least in (("train", spec.min_size), ("val", 0), ("test", 1)):
        sizes = cut_evenly((row / row.sum())[None], np.array([totals[part]]), least)[0]
        order = numpy_stream(spec.seed, "partition", "quantity", part).permutation(totals[part])
        shares[part] = np.split(order, np.cumsum(sizes)[:-1])
    return Partition.of(shares)
