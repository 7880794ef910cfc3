"""STL-10: 96x96 colour photographs, 5,000 + 8,000 labelled ones, in the binary version.

The 100,000 unlabelled images of the archive are not used.

References:
    Coates, Lee, Ng: An analysis of single-layer networks in unsupervised feature learning (2011).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchscn.data.dataset import FileDataset
from torchscn.data.errors import DataError
from torchscn.data.files import Content, OfficialFile, Source, how_to_get
from torchscn.data.image_set import ImageSet

__all__ = ["CLASSES", "STL10", "parse_images", "parse_labels"]

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SIDE = 96
IMAGE_BYTES = 3 * SIDE * SIDE

SOURCE = Source(
    name="stl10",
    folders=("stl10", "stl10_binary"),
    train=(
        OfficialFile("train_X.bin", "918c2871b30a85fa023e0c44e0bee87f", 5_000 * IMAGE_BYTES),
        OfficialFile("train_y.bin", "5a34089d4802c674881badbb80307741", 5_000),
    ),
    test=(
        OfficialFile("test_X.bin", "7f263ba9f9e0b06b93213547f721ac82", 8_000 * IMAGE_BYTES),
        OfficialFile("test_y.bin", "36f9794fa4beb8a2c72628de14fa638e", 8_000),
    ),
    base_url="http://ai.stanford.edu/~acoates/stl10/",
    archive=OfficialFile("stl10_binary.tar.gz", "91f7769df0f17e558f3565bffb0c7dfb"),
)


def _decode(files: Sequence[Content]) -> ImageSet:
    """Images ``(n, 3, 96, 96)`` and their classes."""
    (images_path, images_bytes), (labels_path, labels_bytes) = files
    images = parse_images(images_bytes, images_path)
    labels = parse_labels(labels_bytes, labels_path)
    if len(images) != len(labels):
        raise DataError(
            f"{labels_path} holds {len(labels):,} labels for {len(images):,} images. {how_to_get(SOURCE.name)}"
        )
    return ImageSet(SOURCE.name, images, labels, CLASSES)


def parse_images(content: bytes, path: Path) -> Tensor:
    """Decode images that are stored one colour after the other, each column by column.

    Args:
        content: the file's bytes; the number of images follows from their count.
        path: its name, for messages.

    Returns:
        uint8 tensor ``(n, 3, 96, 96)``, rows before columns.

    Example:
        >>> second_pixel = bytes([0, 255]) + bytes(27646)
        >>> parse_images(second_pixel, Path("train_X.bin")).nonzero()  # image, colour, row, column
        tensor([[0, 0, 1, 0]])
    """
    if len(content) % IMAGE_BYTES:
        raise DataError(
            f"{path} holds {len(content):,} bytes, which is not a whole number of {IMAGE_BYTES:,}-byte images. "
            f"{how_to_get(SOURCE.name)}"
        )
    columns_first = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3, SIDE, SIDE)
    return torch.from_numpy(columns_first.transpose(0, 1, 3, 2).copy())


def parse_labels(content: bytes, path: Path) -> Tensor:
    """Decode labels, stored as 1 to 10.

    Args:
        content: the file's bytes, one per label.
        path: its name, for messages.

    Returns:
        int64 tensor ``(n,)`` of 0 to 9.

    Example:
        >>> parse_labels(bytes([1, 10]), Path("train_y.bin"))
        tensor([0, 9])
    """
    labels = np.frombuffer(content, dtype=np.uint8).astype(np.int64)
    wrong = labels[(labels < 1) | (labels > len(CLASSES))]
    if wrong.size:
        raise DataError(f"{path} holds the label {wrong[0]}, expected 1 to 10. {how_to_get(SOURCE.name)}")
    return torch.from_numpy(labels - 1)


STL10 = FileDataset("STL-10", SOURCE, _decode)
