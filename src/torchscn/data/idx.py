"""The idx files of MNIST and its relatives, gzip or unpacked: images in one file, labels in another."""

import gzip
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchscn.data.errors import DataError
from torchscn.data.files import Content, OfficialFile, how_to_get
from torchscn.data.image_set import ImageSet

__all__ = ["idx_decoder", "idx_file", "parse_idx"]

UNSIGNED_BYTES = 8  # the third byte of an idx file names the type of its numbers


def idx_file(stem: str, size: int, md5: str, unpacked_size: int = 0, unpacked_md5: str = "") -> OfficialFile:
    """A gzip file; its unpacked form is accepted, too, if its md5 is known."""
    unpacked = OfficialFile(stem, unpacked_md5, unpacked_size) if unpacked_md5 else None
    return OfficialFile(f"{stem}.gz", md5, size, unpacked)


def idx_decoder(name: str, classes: tuple[str, ...]) -> Callable[[Sequence[Content]], ImageSet]:
    """What makes an :class:`ImageSet` of one channel from a file of images and one of labels."""

    def decode(files: Sequence[Content]) -> ImageSet:
        (images_path, images_bytes), (labels_path, labels_bytes) = files
        images = parse_idx(images_bytes, images_path, 3, name)
        labels = parse_idx(labels_bytes, labels_path, 1, name)
        _check_labels(labels, len(images), len(classes), labels_path, name)
        return ImageSet(name, images[:, None], labels.long(), classes)

    return decode


def parse_idx(content: bytes, path: Path, n_dims: int, name: str) -> Tensor:
    """Decode an idx file: magic number, lengths (big-endian), unsigned bytes.

    Args:
        content: the file's bytes, gzip or unpacked.
        path: its name, for messages.
        n_dims: how many axes it must have (3 for images, 1 for labels).
        name: the data set, for messages.

    Returns:
        uint8 tensor with the shape given in the file.

    Example:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), Path("labels"), 1, "mnist")
        tensor([7, 8, 9], dtype=torch.uint8)
    """
    content = _unpack(content, path, name)
    header_bytes = 4 * (1 + n_dims)
    header = np.frombuffer(content[:header_bytes].ljust(header_bytes, b"\0"), dtype=">u4").tolist()
    expected_magic = (UNSIGNED_BYTES << 8) + n_dims
    if header[0] != expected_magic:
        raise DataError(
            f"{path} has magic number {header[0]}, expected {expected_magic} for an idx file of {n_dims} axes "
            f"(images have 3, labels 1: were two files swapped?). {how_to_get(name)}"
        )
    body = np.frombuffer(content, dtype=np.uint8, offset=min(header_bytes, len(content)))
    shape = tuple(header[1:])
    if len(content) < header_bytes or body.size != np.prod(shape, dtype=object):
        raise DataError(f"{path} announces {shape} numbers but holds {body.size:,}. {how_to_get(name)}")
    return torch.from_numpy(body.reshape(shape).copy())


def _unpack(content: bytes, path: Path, name: str) -> bytes:
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}). {how_to_get(name)}") from error


def _check_labels(labels: Tensor, n_images: int, n_classes: int, path: Path, name: str) -> None:
    if n_images != len(labels):
        raise DataError(f"{path} holds {len(labels):,} labels for {n_images:,} images. {how_to_get(name)}")
    if len(labels) and labels.max() >= n_classes:
        raise DataError(f"{path} holds the label {labels.max()}, expected 0 to {n_classes - 1}. {how_to_get(name)}")
