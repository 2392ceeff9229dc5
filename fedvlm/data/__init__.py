"""Data: readers, few-shot draws, partitions, images; ``build_federation(cfg)`` is the way in."""

from fedvlm.data.datasets import DATASET_REGISTRY, load_dataset
from fedvlm.data.datum import DatasetBase, Datum
from fedvlm.data.federated import ClientSplit, FederatedData, build_federation
from fedvlm.data.images import ImageLoader
from fedvlm.data.index_file import read_index_file

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
