"""Labelled images in memory: fetching, checking, loading, batching. Imports nothing else from torchscn."""

from torchscn.data.augment import Augmentation, Draws, resize
from torchscn.data.batches import Batches
from torchscn.data.catalog import DATASETS, download, list_datasets, load, status
from torchscn.data.dataset import Dataset, DatasetStatus, FileDataset
from torchscn.data.errors import DataError
from torchscn.data.image_file import decode_image, find_images, read_image
from torchscn.data.image_set import ImageSet
from torchscn.data.normalize import Normalization

__all__ = [
    "DATASETS",
    "Augmentation",
    "Batches",
    "DataError",
    "Dataset",
    "DatasetStatus",
    "Draws",
    "FileDataset",
    "ImageSet",
    "Normalization",
    "decode_image",
    "download",
    "find_images",
    "list_datasets",
    "load",
    "read_image",
    "resize",
    "status",
]
