"""Reading one image file with Pillow: upright, on a white ground, with 8 bits per channel."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchscn.data.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "SUFFIXES",
    "ImageFormat",
    "decode_image",
    "find_images",
    "is_image_file",
    "measure_image",
    "read_image",
    "read_pixels",
]

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
MAX_PIXELS = 64_000_000  # a small file can claim any size and fill the memory when it is unpacked
COMMON_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")  # of files from elsewhere; the decoders of others are less tried
NEEDED = "Image files are read with Pillow, which is not installed. Run: pip install torchscn[images]"

_ORIENTATION = 0x0112  # the EXIF entry that says how the camera was held
_ON_ITS_SIDE = (5, 6, 7, 8)
_WITH_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")


@dataclass(frozen=True)
class ImageFormat:
    """Size and kind of images: height and width in pixels, and whether they have one grey channel or three."""

    height: int
    width: int
    grey: bool


def read_image(path: str | Path, channels: int, size: tuple[int, int]) -> Tensor:
    """Read one image file, scaled to a size.

    The image is turned upright if its EXIF entry says how the camera was held, and transparent pixels show a white
    ground. Of a file with several images, the first is read.

    Args:
        path: the file.
        channels: 1 for grey, 3 for colour.
        size: height and width.

    Returns:
        uint8 tensor ``(channels, height, width)``.

    Raises:
        DataError: the file is missing, not an image or too large, or the number of channels is not supported.
    """
    return read_pixels(Path(path), _requested(channels, size))


def decode_image(content: bytes, channels: int, size: tuple[int, int]) -> Tensor:
    """Read an image file that is in memory, by the rules of :func:`read_image`; only common formats are accepted.

    Args:
        content: the bytes of a PNG, JPEG, GIF, BMP or WebP file.
        channels: 1 for grey, 3 for colour.
        size: height and width.

    Returns:
        uint8 tensor ``(channels, height, width)``.

    Raises:
        DataError: this is no such image, or too large, or the number of channels is not supported.
    """
    return _pixels(_Content(content), _requested(channels, size))


def find_images(folder: str | Path) -> list[Path]:
    """All image files in a folder and the folders inside it, sorted; hidden ones are left out.

    Raises:
        DataError: there are none.
    """
    folder = Path(folder)
    inside = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    found = sorted(
        folder / path
        for path in inside
        if is_image_file(path) and not any(part.startswith(".") for part in path.parts[:-1])
    )
    if not found:
        raise DataError(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))}).")
    return found


def is_image_file(path: Path) -> bool:
    """Whether the name is that of an image, and not hidden."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def measure_image(path: Path, *, upright: bool = True) -> ImageFormat:
    """The format of an image file; only files with one plain grey channel count as grey.

    Args:
        path: the file.
        upright: measure it as it is read, not as it is stored; the pixels of some files are then unpacked.
    """
    with _open(_File(path)) as image:
        width, height = image.size
        with _errors_about(_File(path)):
            if upright and width != height and _orientation(image) in _ON_ITS_SIDE:
                width, height = _turn_upright(image).size
        return ImageFormat(height, width, grey=image.mode == "L")


def read_pixels(path: Path, image_format: ImageFormat) -> Tensor:
    """The image as a uint8 tensor ``(channels, height, width)`` of the given format."""
    return _pixels(_File(path), image_format)


@dataclass(frozen=True)
class _File:
    """An image in a file."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> "Image":
        from PIL import Image

        return Image.open(self.path)

    def unreadable(self, error: Exception) -> DataError:
        return DataError(f"{self} cannot be read as an image ({error}); replace or remove it.")


@dataclass(frozen=True)
class _Content:
    """An image in memory, which has no name."""

    content: bytes

    def __str__(self) -> str:
        return "the image"

    def open(self) -> "Image":
        from PIL import Image

        return Image.open(io.BytesIO(self.content), formats=COMMON_FORMATS)

    def unreadable(self, error: Exception) -> DataError:
        return DataError("this cannot be read as an image; PNG, JPEG, GIF, BMP and WebP files can, if undamaged.")


def _requested(channels: int, size: tuple[int, int]) -> ImageFormat:
    if channels not in (1, 3):
        raise DataError(f"Image files have 1 channel (grey) or 3 (colour); {channels} were requested.")
    return ImageFormat(*size, grey=channels == 1)


def _pixels(source: _File | _Content, image_format: ImageFormat) -> Tensor:
    with _open(source) as image, _errors_about(source):
        pixels = _eight_bit(_turn_upright(image), image_format.grey)
    size = (image_format.width, image_format.height)
    if pixels.size != size:
        from PIL.Image import Resampling

        pixels = pixels.resize(size, Resampling.BILINEAR)
    array = np.array(pixels, dtype=np.uint8).reshape(image_format.height, image_format.width, -1)
    return torch.from_numpy(array).permute(2, 0, 1)


def _open(source: _File | _Content) -> "Image":
    """Open an image: the header is read and checked, the pixels are not."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise DataError(NEEDED) from error
    with _errors_about(source):
        image = source.open()
    try:
        if image.width * image.height > MAX_PIXELS:
            raise _too_large(source)
        if image.mode == "F" or image.mode.startswith("I"):
            raise DataError(f"{source} has more than 8 bits per pixel (mode {image.mode}); convert it to 8 bits first.")
    except DataError:
        image.close()
        raise
    return image


def _orientation(image: "Image") -> int:
    """How the camera was held, 1 to 8; 1 (upright) if the file does not say."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a damaged EXIF entry can fail in any way, and the pixels may still be good
        return 1


def _turn_upright(image: "Image") -> "Image":
    """The image as it was seen; unlike Pillow's ``exif_transpose``, this writes no EXIF entries, which can fail."""
    from PIL.Image import Transpose

    image.load()  # Pillow turns TIFF images itself, and then forgets their orientation
    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    turn = turns.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def _eight_bit(image: "Image", grey: bool) -> "Image":
    """The image in mode L or RGB, transparent pixels on white."""
    from PIL import Image

    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if grey else "RGB")


@contextmanager
def _errors_about(source: _File | _Content) -> Iterator[None]:
    """Turn Pillow's errors into one sentence that names the file.

    Its warnings are about metadata that do not matter here, and about sizes that are checked more strictly anyway.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Image.DecompressionBombError as error:
        raise _too_large(source) from error
    except FileNotFoundError as error:
        raise DataError(f"{source} does not exist.") from error
    except Exception as error:  # a damaged file can fail in any way
        raise source.unreadable(error) from error


def _too_large(source: _File | _Content) -> DataError:
    return DataError(f"{source} has more than {MAX_PIXELS // 10**6} million pixels; scale it down first.")
