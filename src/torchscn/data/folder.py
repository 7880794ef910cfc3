"""Your own images: ``folder:PATH`` with one subfolder per class.

Either ``PATH/train/CLASS/*`` and ``PATH/test/CLASS/*``, or ``PATH/CLASS/*``, of which a fifth becomes the test split:
which images depends only on their class and file name, so adding images does not move the old ones.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from torchscn.data.errors import DataError
from torchscn.data.image_file import SUFFIXES, ImageFormat, is_image_file, measure_image, read_pixels
from torchscn.data.image_set import ImageSet

__all__ = ["PREFIX", "FolderSpec", "load", "parse_spec"]

PREFIX = "folder:"
TEST_SHARE = 5  # one image in five
MAX_SIDE = 1024  # of resized images


@dataclass(frozen=True)
class FolderSpec:
    """What ``folder:PATH?size=N`` says: the folder, and the side to resize to (``None`` keeps the images' own size)."""

    path: Path
    size: int | None = None


@dataclass(frozen=True)
class _Labelled:
    path: Path
    label: int


def parse_spec(name: str) -> FolderSpec:
    """Read ``folder:PATH`` or ``folder:PATH?size=N``.

    Args:
        name: the name as given to ``load``.

    Returns:
        Its parts.

    Example:
        >>> spec = parse_spec("folder:flowers?size=64")
        >>> spec.path.name, spec.size
        ('flowers', 64)
    """
    text, _, options = name.removeprefix(PREFIX).partition("?")
    match = re.fullmatch(r"(?:size=([0-9]{1,9}))?", options)
    if not text or match is None:
        raise DataError(f"{name!r} is not understood; write folder:PATH, or folder:PATH?size=64 to resize to 64x64.")
    size = int(match[1]) if match[1] else None
    if size is not None and not 1 <= size <= MAX_SIDE:
        raise DataError(f"{name!r} asks for images of {size}x{size}; size must be from 1 to {MAX_SIDE}.")
    return FolderSpec(Path(text).expanduser(), size)


def load(name: str, split: str) -> ImageSet:
    """Read one split of a folder of images.

    Args:
        name: ``folder:PATH``, or ``folder:PATH?size=N`` to resize every image to N x N (1 to 1024).
        split: ``"train"`` or ``"test"``.

    Returns:
        Images with one channel if every file is grey (mode L), else three, upright and on white where they are
        transparent; classes are the subfolders in sorted order.
    """
    spec = parse_spec(name)
    if not spec.path.is_dir():
        raise DataError(f"The image folder {spec.path} does not exist; expected one subfolder per class in it.")
    classes, splits = _list_images(spec.path)
    chosen = splits[split]
    if not chosen:
        raise DataError(f"{spec.path} has no {split} images. {_layout_help(spec.path)}")
    image_format = _common_format(splits["train"] + splits["test"], spec)
    images = torch.stack([read_pixels(image.path, image_format) for image in chosen])
    return ImageSet(f"{PREFIX}{spec.path.name}", images, torch.tensor([image.label for image in chosen]), classes)


def _list_images(root: Path) -> tuple[tuple[str, ...], dict[str, list[_Labelled]]]:
    """Class names, and the images of each split."""
    if _subfolders(root / "train") or _subfolders(root / "test"):
        classes = tuple(folder.name for folder in _subfolders(root / "train"))
        return classes, {split: _labelled(root / split, classes) for split in ("train", "test")}
    classes = tuple(folder.name for folder in _subfolders(root))
    if not classes:
        raise DataError(f"{root} has no subfolders. {_layout_help(root)}")
    everything = _labelled(root, classes)
    test = [image for image in everything if _is_test(image.path)]
    train = [image for image in everything if not _is_test(image.path)]
    return classes, {"train": train, "test": test}


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _labelled(folder: Path, classes: tuple[str, ...]) -> list[_Labelled]:
    """Every image under ``folder/CLASS``, sorted."""
    found: list[_Labelled] = []
    for subfolder in _subfolders(folder):
        if subfolder.name not in classes:
            raise DataError(
                f"{subfolder} is a class without training images; the classes of {folder.parent / 'train'} are "
                f"{', '.join(classes) or 'none'}. Add it there or remove it here."
            )
        paths = sorted(path for path in subfolder.iterdir() if is_image_file(path))
        if not paths:
            raise DataError(f"{subfolder} holds no images ({', '.join(sorted(SUFFIXES))}); add some or remove it.")
        label = classes.index(subfolder.name)
        found += [_Labelled(path, label) for path in paths]
    return found


def _is_test(path: Path) -> bool:
    digest = hashlib.sha256(f"{path.parent.name}/{path.name}".encode()).digest()
    return int.from_bytes(digest[:8]) % TEST_SHARE == 0


def _layout_help(root: Path) -> str:
    return (
        f"Put images into {root}/train/CLASS/ and {root}/test/CLASS/, "
        f"or into {root}/CLASS/ (about one in {TEST_SHARE} becomes a test image)."
    )


def _common_format(images: Sequence[_Labelled], spec: FolderSpec) -> ImageFormat:
    """Size and channels that all the images share, so that both splits fit one network."""
    formats = [measure_image(image.path, upright=spec.size is None) for image in images]
    first = formats[0]
    for labelled, this in zip(images, formats, strict=True):
        if spec.size is None and (this.height, this.width) != (first.height, first.width):
            side = min(first.height, first.width, MAX_SIDE)
            raise DataError(
                f"{labelled.path} is {_by(this)} but {images[0].path} is {_by(first)} (width x height). "
                f"Images must share one size; resize them all with {PREFIX}{spec.path}?size={side}"
            )
    grey = all(this.grey for this in formats)
    return ImageFormat(spec.size or first.height, spec.size or first.width, grey)


def _by(image_format: ImageFormat) -> str:
    return f"{image_format.width}x{image_format.height}"
