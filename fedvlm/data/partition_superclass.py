"""Label skew with CIFAR-100's superclasses (the family's ``noniid-labeldir100``).

Client by client: superclasses by Dir(beta), classes inside by Dir(beta_fine), then N/K training
images without replacement, the proportions renormalised when a class is used up. Clients are thus
of equal size, and the last ones get what the others leave.

Departure: the family draws from train and test together and splits by index, so clients are tested
on classes they never trained on. Here validation and test images of a class are cut like its
training images, so a client is tested on what it trained on.
"""

from __future__ import annotations

import numpy as np

from fedvlm.data.datum import PARTS, IntArray
from fedvlm.data.partition import Partition, Pool
from fedvlm.data.partition_cut import (
    NEGLIGIBLE,
    FloatArray,
    check_enough,
    deal,
    even_cut,
    none_empty,
    proportions,
)
from fedvlm.data.partition_spec import PartitionSpec
from fedvlm.data.superclasses import superclasses_of
from fedvlm.rng import numpy_stream


def superclass_dirichlet(pool: Pool, spec: PartitionSpec) -> Partition:
    """Draw each client's images by superclass, then by class.

    A client has a test image unless its classes have fewer than clients that hold them.

    Raises:
        ConfigError: classes without known superclasses, or too few images.
    """
    groups = superclasses_of(pool.class_names)
    counts = {p: np.bincount(pool.labels[p], minlength=pool.num_classes) for p in PARTS}
    check_enough({p: int(counts[p].sum()) for p in PARTS}, spec, spec.clients, "")
    rng = numpy_stream(spec.seed, "partition", "superclass_dirichlet")
    train = draw_profiles(counts["train"], groups, spec, rng)
    shares = np.full(train.shape, 1 / spec.clients)  # of classes without a training image
    known = counts["train"] > 0
    shares[known] = train[known] / counts["train"][known, None]
    test = none_empty(even_cut(shares, counts["test"]), shares)
    sizes = {"train": train, "val": even_cut(shares, counts["val"]), "test": test}
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
    held = np.zeros((len(counts), spec.clients), dtype=np.int64)
    for client, share in enumerate(np.array_split(np.arange(counts.sum()), spec.clients)):
        profile = _profile(groups, counts > 0, spec, rng)
        while missing := len(share) - int(held[:, client].sum()):  # each turn uses up a class
            weight = np.where(left > 0, profile, 0.0)
            if weight.sum() < NEGLIGIBLE:  # nothing is left of its classes: others
                weight = profile = _profile(groups, left > 0, spec, rng)
            drawn = np.minimum(rng.multinomial(missing, weight / weight.sum()), left)
            held[:, client] += drawn
            left -= drawn
    return held


def _profile(
    groups: IntArray, open_: np.ndarray, spec: PartitionSpec, rng: np.random.Generator
) -> FloatArray:
    """Draw class proportions ``[C]`` over the open classes."""
    profile = np.zeros(len(groups))
    known = np.unique(groups[open_])
    for group, share in zip(known, proportions(spec.beta, len(known), rng), strict=True):
        inside = np.flatnonzero(open_ & (groups == group))
        profile[inside] = share * proportions(spec.beta_fine, len(inside), rng)
    return profile
