"""CIFAR-10 and CIFAR-100: 32x32 colour photographs, 50,000 + 10,000, in the binary version.

A record is one label byte (CIFAR-100: a coarse one, then a fine one) and 3,072 bytes: red, green, blue, each by rows.

References:
    Krizhevsky: Learning multiple layers of features from tiny images (2009).
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from torchscn.data.dataset import FileDataset
from torchscn.data.errors import DataError
from torchscn.data.files import Content, OfficialFile, Source, how_to_get
from torchscn.data.image_set import ImageSet

__all__ = ["CIFAR10", "CIFAR10_CLASSES", "CIFAR100", "CIFAR100_CLASSES", "parse"]

BASE_URL = "https://www.cs.toronto.edu/~kriz/"
IMAGE_SHAPE = (3, 32, 32)
IMAGE_BYTES = 3 * 32 * 32

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_FINE_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
wolf woman worm
"""
CIFAR100_CLASSES = tuple(_FINE_NAMES.split())

CIFAR10_SOURCE = Source(
    name="cifar10",
    folders=("cifar10", "cifar-10-batches-bin"),
    train=(
        OfficialFile("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25", 30_730_000),
        OfficialFile("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692", 30_730_000),
        OfficialFile("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421", 30_730_000),
        OfficialFile("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb", 30_730_000),
        OfficialFile("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d", 30_730_000),
    ),
    test=(OfficialFile("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d", 30_730_000),),
    base_url=BASE_URL,
    archive=OfficialFile("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
)

CIFAR100_SOURCE = Source(
    name="cifar100",
    folders=("cifar100", "cifar-100-binary"),
    train=(OfficialFile("train.bin", "6172c7755cfe09b2fe270c85cebc1b15", 153_700_000),),
    test=(OfficialFile("test.bin", "4499cfba6c016c1be1438163640a0898", 30_740_000),),
    base_url=BASE_URL,
    archive=OfficialFile("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
)


def _decode(files: Sequence[Content], name: str, classes: tuple[str, ...], n_label_bytes: int) -> ImageSet:
    """Images ``(n, 3, 32, 32)`` of all files together, and their classes."""
    parts = [parse(content, path, name, classes, n_label_bytes) for path, content in files]
    if len(parts) == 1:
        return parts[0]
    images = torch.cat([part.images for part in parts])
    return ImageSet(name, images, torch.cat([part.labels for part in parts]), classes)


def parse(content: bytes, path: Path, name: str, classes: tuple[str, ...], n_label_bytes: int = 1) -> ImageSet:
    """Decode the records of one file; their number follows from its size.

    Args:
        content: the file's bytes.
        path: its name, for messages.
        name: the data set.
        classes: names of the classes.
        n_label_bytes: label bytes before each image; the last of them is the label that is kept.

    Returns:
        The images and labels of this file.

    Example:
        >>> frog = bytes([6]) + bytes(3072)
        >>> parse(frog, Path("batch.bin"), "cifar10", CIFAR10_CLASSES)
        ImageSet('cifar10': 1 images of 3x32x32, 10 classes)
    """
    record_bytes = n_label_bytes + IMAGE_BYTES
    if len(content) % record_bytes:
        raise DataError(
            f"{path} holds {len(content):,} bytes, which is not a whole number of {record_bytes:,}-byte records. "
            f"{how_to_get(name)}"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record_bytes)
    labels = records[:, n_label_bytes - 1].astype(np.int64)
    if len(labels) and labels.max() >= len(classes):
        raise DataError(
            f"{path} holds the label {labels.max()}, expected 0 to {len(classes) - 1} "
            f"(is it a file of another data set?). {how_to_get(name)}"
        )
    images = records[:, n_label_bytes:].copy().reshape(-1, *IMAGE_SHAPE)
    return ImageSet(name, torch.from_numpy(images), torch.from_numpy(labels), classes)


CIFAR10 = FileDataset(
    "CIFAR-10", CIFAR10_SOURCE, partial(_decode, name="cifar10", classes=CIFAR10_CLASSES, n_label_bytes=1)
)
CIFAR100 = FileDataset(
    "CIFAR-100", CIFAR100_SOURCE, partial(_decode, name="cifar100", classes=CIFAR100_CLASSES, n_label_bytes=2)
)
