"""Which test images were classified right, of the logits that a run keeps (``runs.bits``)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedvlm.data.federated import FederatedData
from fedvlm.runs.bits import BITS, PLACES, encode_bits, encode_places

PERSONAL = "personal|"


def image_bits(logits: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return a bit for each test image, of the personal models and of the shared one.

    Args:
        logits: ``personal|<client>`` and ``global`` ``[n, C]`` with true labels ``[n]`` under
            ``true|<name>``; logits that are not finite are never right.

    Returns:
        ``personal``: client's number -> bits; ``shared``: bits. What has no logits, because a site
        keeps them, is absent.
    """
    bits = {
        name: encode_bits(_right(logits[name], logits[f"true|{name}"]).tolist())
        for name in logits if f"true|{name}" in logits
    }
    clients = sorted(int(name.removeprefix(PERSONAL)) for name in bits if PERSONAL in name)
    personal = {str(c): bits[f"{PERSONAL}{c}"] for c in clients}
    shared = {"shared": bits["global"]} if "global" in bits else {}
    return {**({"personal": personal} if personal else {}), **shared}


def image_places(last: Mapping[str, Any], data: FederatedData) -> dict[str, Any]:
    """Return the section ``test_images``: which of the set's test images each client's are.

    A place is that of the image among the set's test images by path, so that it is the same in
    every run of the set. Images of a group are one draw and have the place of its first image: no
    name of a group is read, which a pack would not have.

    Args:
        last: the last round's record; clients without bits are left out, none: an empty section.
    """
    clients = (last.get(BITS) or {}).get("personal") or {}
    if not clients:
        return {}
    tests = {c: data.clients[int(c)].test for c in clients}
    used = {*data.global_test.tolist()}.union(*(test.tolist() for test in tests.values()))
    order, first, places = dict[str, int](), dict[str, int](), dict[int, int]()
    for key, at in sorted((data.samples[at].key, at) for at in used):
        place = order.setdefault(key, len(order))
        group = data.samples[at].group
        places[at] = place if group is None else first.setdefault(group, place)
    told = hashlib.sha256("\0".join(order).encode("utf-8", "surrogateescape")).hexdigest()
    return {PLACES: {"of": told[:12], "clients": {
        c: encode_places([places[at] for at in test.tolist()])
        for c, test in tests.items()}}}


def _right(logits: Tensor, true: Tensor) -> Tensor:
    return (logits.argmax(-1) == true) & torch.isfinite(logits).all(-1)
