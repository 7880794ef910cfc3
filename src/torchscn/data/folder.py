"""Your own images: ``folder:PATH`` with one subfolder per class.

Either ``PATH/train/CLASS/*`` and ``PATH/test/CLASS/*``, or ``PATH/CLASS/*``, of which a fifth becomes the test split:
which images depends only on their class and file name, so adding images does not move the old ones.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchscn.data.errors import DataError
from torchscn.data.image_set import ImageSet

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PREFIX", "FolderSpec", "load", "parse_spec", "read_image"]

PREFIX = "folder:"
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
TEST_SHARE = 5  # one image in five
NEEDED = "Image folders are read with Pillow, which is not installed. Run: pip install torchscn[images]"


@dataclass(frozen=True)
class FolderSpec:
    """What ``folder:PATH?size=N`` says: the folder, and the side to resize to (``None`` keeps the images' own size)."""

    path: Path
    size: int | None = None


@dataclass(frozen=True)
class _Labelled:
    path: Path
    label: int


@dataclass(frozen=True)
class _Format:
    height: int
    width: int
    grey: bool


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
    match = re.fullmatch(r"(?:size=([1-9]\d*))?", options)
    if not text or match is None:
        raise DataError(f"{name!r} is not understood; write folder:PATH, or folder:PATH?size=64 to resize to 64x64.")
    return FolderSpec(Path(text).expanduser(), int(match[1]) if match[1] else None)


def load(name: str, split: str) -> ImageSet:
    """Read one split of a folder of images.

    Args:
        name: ``folder:PATH``, or ``folder:PATH?size=N`` to resize every image to N x N.
        split: ``"train"`` or ``"test"``.

    Returns:
        Images with one channel if every file is grey (mode L), else three; classes are the subfolders in sorted order.
    """
    spec = parse_spec(name)
    if not spec.path.is_dir():
        raise DataError(f"The image folder {spec.path} does not exist; expected one subfolder per class in it.")
    classes, splits = _list_images(spec.path)
    chosen = splits[split]
    if not chosen:
        raise DataError(f"{spec.path} has no {split} images. {_layout_help(spec.path)}")
    image_format = _common_format(splits["train"] + splits["test"], spec)
    images = torch.stack([_read(image.path, image_format) for image in chosen])
    return ImageSet(f"{PREFIX}{spec.path.name}", images, torch.tensor([image.label for image in chosen]), classes)


def read_image(path: str | Path, channels: int, size: tuple[int, int]) -> Tensor:
    """Read one image file, scaled to a size.

    Args:
        path: the file.
        channels: 1 for grey, 3 for colour.
        size: height and width.

    Returns:
        uint8 tensor ``(channels, height, width)``.

    Raises:
        DataError: the file is missing or not an image, or the number of channels is not supported.
    """
    if channels not in (1, 3):
        raise DataError(f"Image files have 1 channel (grey) or 3 (colour); {channels} were requested.")
    return _read(Path(path), _Format(*size, grey=channels == 1))


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
        paths = sorted(path for path in subfolder.iterdir() if _is_image(path))
        if not paths:
            raise DataError(f"{subfolder} holds no images ({', '.join(sorted(SUFFIXES))}); add some or remove it.")
        label = classes.index(subfolder.name)
        found += [_Labelled(path, label) for path in paths]
    return found


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _is_test(path: Path) -> bool:
    digest = hashlib.sha256(f"{path.parent.name}/{path.name}".encode()).digest()
    return int.from_bytes(digest[:8]) % TEST_SHARE == 0


def _layout_help(root: Path) -> str:
    return (
        f"Put images into {root}/train/CLASS/ and {root}/test/CLASS/, "
        f"or into {root}/CLASS/ (about one in {TEST_SHARE} becomes a test image)."
    )


def _common_format(images: Sequence[_Labelled], spec: FolderSpec) -> _Format:
    """Size and channels that all the images share, so that both splits fit one network."""
    first: tuple[int, int] | None = None
    modes = set()
    for labelled in images:
        with _open(labelled.path) as image:
            modes.add(image.mode)
            first = first or image.size
            if spec.size is None and image.size != first:
                raise DataError(
                    f"{labelled.path} is {_by(image.size)} but {images[0].path} is {_by(first)} (width x height). "
                    f"Images must share one size; resize them all with {PREFIX}{spec.path}?size={min(first)}"
                )
    assert first is not None
    width, height = (spec.size, spec.size) if spec.size else first
    return _Format(height, width, grey=modes == {"L"})


def _read(path: Path, image_format: _Format) -> Tensor:
    """The image as a uint8 tensor ``(channels, height, width)``."""
    from PIL import Image

    with _open(path) as image:
        try:
            pixels = _eight_bit(image, image_format.grey)
        except (OSError, SyntaxError, ValueError) as error:
            raise _unreadable(path, error) from error
    size = (image_format.width, image_format.height)
    if pixels.size != size:
        pixels = pixels.resize(size, Image.Resampling.BILINEAR)
    array = np.array(pixels, dtype=np.uint8).reshape(image_format.height, image_format.width, -1)
    return torch.from_numpy(array).permute(2, 0, 1)


def _open(path: Path) -> "Image":
    """Open an image: the header is read and checked, the pixels are not."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(NEEDED) from error
    try:
        image = Image.open(path)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _unreadable(path, error) from error
    if image.mode == "F" or image.mode.startswith("I"):
        image.close()
        raise DataError(f"{path} has more than 8 bits per pixel (mode {image.mode}); convert it to 8 bits first.")
    return image


def _eight_bit(image: "Image", grey: bool) -> "Image":
    if grey:
        return image.convert("L")
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _unreadable(path: Path, error: BaseException) -> DataError:
    return DataError(f"{path} cannot be read as an image ({error}); replace or remove it.")


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
