"""MNIST: 28x28 grey handwritten digits, 60,000 + 10,000, in idx files (gzip or unpacked).

References:
    LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition (1998).
"""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchscn.data.dataset import FileDataset
from torchscn.data.errors import DataError
from torchscn.data.files import Content, OfficialFile, Source, how_to_get
from torchscn.data.image_set import ImageSet

__all__ = ["CLASSES", "MNIST", "parse_idx"]

CLASSES = tuple("0123456789")
UNSIGNED_BYTES = 8  # the third byte of an idx file names the type of its numbers


def _file(stem: str, size: int, md5: str, unpacked_size: int, unpacked_md5: str) -> OfficialFile:
    return OfficialFile(f"{stem}.gz", md5, size, unpacked=OfficialFile(stem, unpacked_md5, unpacked_size))


SOURCE = Source(
    name="mnist",
    folders=("mnist", "MNIST/raw"),
    train=(
        _file(
            "train-images-idx3-ubyte",
            size=9_912_422,
            md5="f68b3c2dcbeaaa9fbdd348bbdeb94873",
            unpacked_size=47_040_016,
            unpacked_md5="6bbc9ace898e44ae57da46a324031adb",
        ),
        _file(
            "train-labels-idx1-ubyte",
            size=28_881,
            md5="d53e105ee54ea40749a09fcbcd1e9432",
            unpacked_size=60_008,
            unpacked_md5="a25bea736e30d166cdddb491f175f624",
        ),
    ),
    test=(
        _file(
            "t10k-images-idx3-ubyte",
            size=1_648_877,
            md5="9fb629c4189551a2d022fa330f9573f3",
            unpacked_size=7_840_016,
            unpacked_md5="2646ac647ad5339dbf082846283269ea",
        ),
        _file(
            "t10k-labels-idx1-ubyte",
            size=4_542,
            md5="ec29112dd5afa0611ce80d1b7f02629c",
            unpacked_size=10_008,
            unpacked_md5="27ae3e4e09519cfbb04c329615203637",
        ),
    ),
    base_url="https://ossci-datasets.s3.amazonaws.com/mnist/",
)


def _decode(files: Sequence[Content]) -> ImageSet:
    """Images ``(n, 1, 28, 28)`` and their digits."""
    (images_path, images_bytes), (labels_path, labels_bytes) = files
    images = parse_idx(images_bytes, images_path, n_dims=3)
    labels = parse_idx(labels_bytes, labels_path, n_dims=1)
    return _image_set(images, labels, labels_path)


def parse_idx(content: bytes, path: Path, n_dims: int) -> Tensor:
    """Decode an idx file: magic number, lengths (big-endian), unsigned bytes.

    Args:
        content: the file's bytes, gzip or unpacked.
        path: its name, for messages.
        n_dims: how many axes it must have (3 for images, 1 for labels).

    Returns:
        uint8 tensor with the shape given in the file.

    Example:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), Path("labels"), n_dims=1)
        tensor([7, 8, 9], dtype=torch.uint8)
    """
    content = _unpack(content, path)
    header_bytes = 4 * (1 + n_dims)
    header = np.frombuffer(content[:header_bytes].ljust(header_bytes, b"\0"), dtype=">u4").tolist()
    expected_magic = (UNSIGNED_BYTES << 8) + n_dims
    if header[0] != expected_magic:
        raise DataError(
            f"{path} has magic number {header[0]}, expected {expected_magic} for an idx file of {n_dims} axes "
            f"(images have 3, labels 1: were two files swapped?). {how_to_get(SOURCE.name)}"
        )
    body = np.frombuffer(content, dtype=np.uint8, offset=min(header_bytes, len(content)))
    shape = tuple(header[1:])
    if len(content) < header_bytes or body.size != np.prod(shape, dtype=object):
        raise DataError(f"{path} announces {shape} numbers but holds {body.size:,}. {how_to_get(SOURCE.name)}")
    return torch.from_numpy(body.reshape(shape).copy())


def _unpack(content: bytes, path: Path) -> bytes:
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}). {how_to_get(SOURCE.name)}") from error


def _image_set(images: Tensor, labels: Tensor, labels_path: Path) -> ImageSet:
    if len(images) != len(labels):
        raise DataError(
            f"{labels_path} holds {len(labels):,} labels for {len(images):,} images. {how_to_get(SOURCE.name)}"
        )
    if len(labels) and labels.max() > 9:
        raise DataError(f"{labels_path} holds the label {labels.max()}, expected 0 to 9. {how_to_get(SOURCE.name)}")
    return ImageSet(SOURCE.name, images[:, None], labels.long(), CLASSES)


MNIST = FileDataset("MNIST", SOURCE, _decode)
