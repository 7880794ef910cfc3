"""Files of pictures: those of the data sets, with their official size and md5, and single images."""

import gzip
import io
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tools.fuzz.judge import Refused, Wrong, check_command, check_sentence, read_or_refuse
from tools.fuzz.kind import Check, Kind
from tools.fuzz.mutations import mutate_bytes
from torchscn.cli import main
from torchscn.data import DataError, ImageSet, read_image
from torchscn.data.cifar import CIFAR10, CIFAR10_CLASSES, CIFAR100, CIFAR100_CLASSES
from torchscn.data.cifar import parse as parse_cifar
from torchscn.data.dataset import FileDataset
from torchscn.data.files import OfficialFile, md5_of_file
from torchscn.data.idx import parse_idx
from torchscn.data.image_file import ImageFormat, measure_image
from torchscn.data.mnist import MNIST
from torchscn.data.stl10 import STL10, parse_images, parse_labels

__all__ = ["data_kinds"]

N_IMAGES = 3
COMMAND_EVERY = 25
FORMATS = {  # suffix: name in Pillow, mode
    "png": ("PNG", "RGBA"),
    "jpg": ("JPEG", "RGB"),
    "gif": ("GIF", "P"),
    "tif": ("TIFF", "RGB"),
    "webp": ("WEBP", "RGB"),
    "bmp": ("BMP", "RGB"),
    "pgm": ("PPM", "L"),
}


def data_kinds(folder: Path) -> list[Kind]:
    """Every kind of picture file, with good ones in ``folder``."""
    folder.mkdir(parents=True)
    images, labels = _random((N_IMAGES, 28, 28)), bytes(range(N_IMAGES))
    pixels = images.numpy().tobytes()
    packed, packed_labels = gzip.compress(_idx(pixels, N_IMAGES, 28, 28)), gzip.compress(_idx(labels, N_IMAGES))
    cifar10 = b"".join(bytes([label]) + _random((3072,)).numpy().tobytes() for label in labels)
    cifar100 = b"".join(bytes([1, label]) + _random((3072,)).numpy().tobytes() for label in labels)
    stl10 = _random((N_IMAGES, 3, 96, 96)).numpy().tobytes()
    return [
        _set_kind(folder, MNIST, 0, [packed, packed_labels], lambda c, p: parse_idx(c, p, 3, "mnist").numel()),
        _set_kind(folder, MNIST, 1, [packed, packed_labels], lambda c, p: parse_idx(c, p, 1, "mnist").numel()),
        _set_kind(
            folder,
            MNIST,
            0,
            [_idx(pixels, N_IMAGES, 28, 28), packed_labels],
            lambda c, p: parse_idx(c, p, 3, "mnist").numel(),
        ),
        _set_kind(
            folder, CIFAR10, 0, [cifar10] * 5, lambda c, p: _count(parse_cifar(c, p, "cifar10", CIFAR10_CLASSES))
        ),
        _set_kind(
            folder, CIFAR100, 0, [cifar100], lambda c, p: _count(parse_cifar(c, p, "cifar100", CIFAR100_CLASSES, 2))
        ),
        _set_kind(folder, STL10, 0, [stl10, bytes([1, 2, 10])], lambda c, p: parse_images(c, p).numel()),
        _set_kind(folder, STL10, 1, [stl10, bytes([1, 2, 10])], lambda c, p: parse_labels(c, p).numel()),
        *(_image_kind(folder, suffix, *how) for suffix, how in FORMATS.items()),
    ]


def _random(shape: Sequence[int]) -> Tensor:
    return torch.randint(0, 256, tuple(shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _idx(content: bytes, *shape: int) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + content


def _count(images: ImageSet) -> int:
    return images.images.numel()


def _set_kind(
    folder: Path, dataset: FileDataset, which: int, contents: list[bytes], parse: Callable[[bytes, Path], int]
) -> Kind:
    """A training file of a data set; ``which`` one is damaged, and ``parse`` counts the numbers in it."""
    files = dataset.source.train
    good = contents[which]
    forms = [
        file.unpacked if file.unpacked is not None and not content.startswith(b"\x1f\x8b") else file
        for file, content in zip(files, contents, strict=True)
    ]
    title = f"data {forms[which].name}, {dataset.title}"
    place = folder / title.replace(" ", "-") / dataset.source.folders[0]
    place.mkdir(parents=True)
    for form, content in zip(forms, contents, strict=True):
        (place / form.name).write_bytes(content)
    measured = tuple(
        OfficialFile(form.name, md5_of_file(place / form.name), len(content))
        for form, content in zip(forms, contents, strict=True)
    )
    official = replace(dataset, source=replace(dataset.source, train=measured, test=()))
    path = place / forms[which].name
    checks = (
        Check(partial(_check_official, official, path, good, _fingerprint(official.load("train", place.parent)))),
        Check(partial(_check_parsed, parse, path)),
    )
    return Kind(title, good, mutate_bytes, checks)


def _fingerprint(images: ImageSet) -> tuple[bytes, tuple[int, ...]]:
    return images.images.numpy().tobytes(), tuple(images.labels.tolist())


def _check_official(
    dataset: FileDataset, path: Path, good: bytes, expected: tuple[bytes, tuple[int, ...]], content: bytes
) -> None:
    """Every change is noticed, since size and md5 are known."""
    path.write_bytes(content)
    data_dir = path.parent.parent
    found = read_or_refuse(lambda: dataset.load("train", data_dir), path, DataError)
    status = dataset.status(data_dir, verify=True)
    if isinstance(found, Refused) != (content != good) or status.found != (content == good):
        raise Wrong("damage was not noticed" if content != good else f"refused: {found}")
    if isinstance(found, Refused):
        check_sentence(status.problem, path)
    elif _fingerprint(found) != expected:
        raise Wrong("other images")


def _check_parsed(parse: Callable[[bytes, Path], int], path: Path, content: bytes) -> None:
    """Without the md5, a format can only promise what its header and size say; whatever is read is within the file."""
    found = read_or_refuse(lambda: parse(content, path), path, DataError)
    if not isinstance(found, Refused) and not content.startswith(b"\x1f\x8b") and found > len(content):
        raise Wrong(f"{found} numbers from {len(content)} bytes")


def _image_kind(folder: Path, suffix: str, name: str, mode: str) -> Kind:
    path, good = folder / f"picture.{suffix}", _picture(name, mode)
    path.write_bytes(good)
    checks = (Check(partial(_check_image, path)), Check(partial(_check_predict, path), COMMAND_EVERY))
    return Kind(f"image {suffix}", good, mutate_bytes, checks)


def _picture(name: str, mode: str) -> bytes:
    """A small picture with an EXIF entry, where the format has them."""
    from PIL import Image

    image = Image.fromarray(_random((12, 17, 3)).numpy()).convert(mode)
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    image.save(buffer, name, **({"exif": exif} if name in ("PNG", "JPEG", "WEBP", "TIFF") else {}))
    return buffer.getvalue()


def _check_image(path: Path, content: bytes) -> None:
    """A picture of the requested format, or a sentence; most formats have no checksum for their pixels."""
    path.write_bytes(content)
    measured = read_or_refuse(lambda: measure_image(path), path, DataError)
    if not isinstance(measured, (ImageFormat, Refused)):
        raise Wrong(f"measured {measured!r}")
    for channels in (1, 3):
        found = read_or_refuse(lambda channels=channels: read_image(path, channels, (28, 28)), path, DataError)  # type: ignore[misc]
        if not isinstance(found, Refused) and (found.shape != (channels, 28, 28) or found.dtype != torch.uint8):
            raise Wrong(f"{found.dtype} of shape {tuple(found.shape)}")


def _check_predict(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    check_command(main, ["predict", "scn4-mnist", str(path)], path)
