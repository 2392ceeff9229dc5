"""Clients of a cell: who holds which training and validation images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evidence.map.images import VAL_SHARE, Features, Part
from fedvlm.core.rng import numpy_stream

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
TWO = "two classes"  # each client has two classes, evenly
EVEN = "even"  # each client has all classes, evenly
SKEWS = (TWO, "0.1", "0.3", "1", EVEN)  # the others: concentration of a Dirichlet distribution
MOST = 1000  # images of all clients of a cell
SLACK = 1.02  # of the demand for a class above what there is


@dataclass(frozen=True)
class Held:
    """What a client of a cell has.

    Attributes:
        shares: class shares ``[C]`` that its images are drawn with; they weigh its test.
        train: places of its training images in the set's.
        val: places of its validation images in the set's.
        domain: which scanner shows them.
    """

    shares: Floats
    train: Labels
    val: Labels
    domain: int = 0


def skew_words(skew: str) -> str:
    """Return a label skew of ``SKEWS`` in words."""
    return {TWO: "two classes each", EVEN: "all classes evenly"}.get(skew, f"Dirichlet {skew}")


def class_shares(skew: str, clients: int, classes: int, rng: np.random.Generator) -> Floats:
    """Return class shares ``[K, C]``.

    Args:
        skew: of ``SKEWS``.
    """
    if skew == EVEN:
        return np.full((clients, classes), 1 / classes)
    if skew != TWO:
        return rng.dirichlet(np.full(classes, float(skew)), clients)
    decks = math.ceil(2 * clients / classes) + 1
    deck = np.concatenate([rng.permutation(classes) for _ in range(decks)])
    out = np.zeros((clients, classes))
    for k in range(clients):
        first, second = deck[2 * k : 2 * k + 2]
        if first == second:  # across the border of two permutations
            second = (second + 1) % classes
        out[k, [first, second]] = 0.5
    return out


def fit_shares(shares: Floats, count: int, supply: Labels, steps: int = 500) -> Floats:
    """Return the class shares nearest to ``shares`` that a set has enough images for.

    Iterative proportional fitting: the clients' demand for a class is scaled down to the supply,
    each client's shares to a sum of 1 again. Where supply suffices nothing changes.

    Args:
        shares: ``[K, C]``.
        count: images of each client.
        supply: images of each class ``[C]``.
    """
    out = shares
    for _ in range(steps):
        demand = count * out.sum(0)
        scale = np.minimum(1, supply / np.maximum(demand, 1e-12))
        if (scale > 1 - 1e-6).all():
            break
        out = out * scale
        out = out / out.sum(1, keepdims=True)
    return out


def draw(shares: Floats, count: int, labels: Labels, rng: np.random.Generator) -> list[Labels]:
    """Return ``count`` images for each client by its class shares, no image twice.

    A class that has run out gives way to the others of the client, and all classes of a client to
    whatever is left.
    """
    left = [list(rng.permutation(np.flatnonzero(labels == c))) for c in range(shares.shape[1])]
    out = []
    for share in shares:
        got = []
        for _ in range(count):
            there = np.array([len(images) > 0 for images in left], dtype=np.float64)
            weight = share * there
            weight = weight if weight.sum() > 1e-12 else there
            if not weight.any():
                break
            got.append(left[int(rng.choice(len(weight), p=weight / weight.sum()))].pop())
        out.append(np.array(sorted(got), dtype=np.int64))
    return out


def deal(
    data: Features, clients: int, images: int, skew: str, shift: bool, seed: int
) -> list[Held]:
    """Return a cell's clients; none where the set has too few images of their classes."""
    rng = numpy_stream(seed, "map", data.name, clients, images, skew)
    supply = np.bincount(data.train.labels, minlength=data.classes)
    shares = fit_shares(class_shares(skew, clients, data.classes, rng), images, supply)
    if (images * shares.sum(0) > SLACK * supply + 1).any():
        return []
    train = draw(shares, images, data.train.labels, rng)
    room = len(data.val.labels) // clients
    val = draw(shares, max(1, min(round(VAL_SHARE * images), room)), data.val.labels, rng)
    domains = data.train.features.shape[0]
    return [Held(*held, domain=k % domains if shift else 0)
            for k, held in enumerate(zip(shares, train, val, strict=True))]


def take(part: Part, places: Labels, domain: int) -> tuple[Floats, Labels]:
    """Return features ``[n, d]`` and labels ``[n]`` of a client's images."""
    return part.features[domain, places], part.labels[places]
