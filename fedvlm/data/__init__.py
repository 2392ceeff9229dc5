"""Data: readers, few-shot draws, partitions, images; ``build_federation(cfg)`` is the way in.

Names are imported when they are asked for: reading a table of info must not load PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedvlm.data.datasets import DATASET_REGISTRY, load_dataset
    from fedvlm.data.datum import DatasetBase, Datum
    from fedvlm.data.federated import ClientSplit, FederatedData, build_federation
    from fedvlm.data.images import ImageLoader
    from fedvlm.data.index_file import read_index_file

_HOME = {
    "DATASET_REGISTRY": "datasets",
    "load_dataset": "datasets",
    "DatasetBase": "datum",
    "Datum": "datum",
    "ClientSplit": "federated",
    "FederatedData": "federated",
    "build_federation": "federated",
    "ImageLoader": "images",
    "read_index_file": "index_file",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedvlm.data' has no attribute '{name}'")
    return getattr(importlib.import_module(f"fedvlm.data.{_HOME[name]}"), name)


__all__ = [
    "DATASET_REGISTRY",
    "ClientSplit",
    "DatasetBase",
    "Datum",
    "FederatedData",
    "ImageLoader",
    "build_federation",
    "load_dataset",
    "read_index_file",
]
