"""Labelled images in memory: fetching, checking, loading, batching. Imports nothing else of torchscn."""

from torchscn.data.augment import Augmentation, Draws
from torchscn.data.batches import Batches
from torchscn.data.catalog import DatasetStatus, list_datasets, load, status
from torchscn.data.download import download
from torchscn.data.errors import DataError
from torchscn.data.folder import read_image
from torchscn.data.image_set import ImageSet
from torchscn.data.normalize import Normalization

__all__ = [
    "Augmentation",
    "Batches",
    "DataError",
    "DatasetStatus",
    "Draws",
    "ImageSet",
    "Normalization",
    "download",
    "list_datasets",
    "load",
    "read_image",
    "status",
]
