"""Which test images were classified right, of the logits that a run keeps (``runs.bits``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedvlm.runs.bits import encode_bits

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


def _right(logits: Tensor, true: Tensor) -> Tensor:
    return (logits.argmax(-1) == true) & torch.isfinite(logits).all(-1)
