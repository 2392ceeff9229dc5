"""Quantity skew: clients of very different size, all with the set's own mix of classes."""

from __future__ import annotations

import numpy as np

from fedvlm.data.datum import PARTS
from fedvlm.data.partition import Partition, Pool
from fedvlm.data.partition_cut import NEGLIGIBLE, check_enough, even_cut, proportions
from fedvlm.data.partition_spec import PartitionSpec
from fedvlm.rng import numpy_stream


def quantity(pool: Pool, spec: PartitionSpec) -> Partition:
    """Cut a random permutation of each part by proportions drawn from Dir(beta * 1_K).

    The same proportions cut all parts. Each client first gets its minimum (``spec.min_size``
    training images, one test image) and the proportions share out the rest, so one draw is enough.

    Raises:
        ConfigError: too few images.
    """
    totals = {part: len(pool.labels[part]) for part in PARTS}
    check_enough(totals, spec, spec.clients, "")
    stream = numpy_stream(spec.seed, "partition", "quantity")
    row = np.maximum(proportions(spec.beta, spec.clients, stream), NEGLIGIBLE)
    shares = {}
    for part, least in (("train", spec.min_size), ("val", 0), ("test", 1)):
        sizes = even_cut((row / row.sum())[None], np.array([totals[part]]), least)[0]
        order = numpy_stream(spec.seed, "partition", "quantity", part).permutation(totals[part])
        shares[part] = np.split(order, np.cumsum(sizes)[:-1])
    return Partition.of(shares)
