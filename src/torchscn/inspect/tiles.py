"""Small images laid side by side into one array, pixel by pixel."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

__all__ = ["Array", "as_picture", "atom_picture", "enlarge", "framed", "grid", "stretched"]

Array = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
PAPER = 255  # between tiles
FRAME = (255, 140, 0)


def as_picture(image: Tensor) -> Tensor:
    """An image with values from 0 to 1, or uint8, as uint8 ``(3, height, width)``.

    Of images with neither one nor three channels, the mean over channels is shown.
    """
    pixels = image if image.dtype == torch.uint8 else (image.clamp(0, 1) * 255).round().to(torch.uint8)
    if pixels.shape[0] not in (1, 3):
        pixels = pixels.float().mean(0, keepdim=True).round().to(torch.uint8)
    return pixels.expand(3, -1, -1)


def atom_picture(atom: Tensor) -> Tensor:
    """A change of the image around mid-grey, as strong as the range allows; uint8 ``(3, height, width)``."""
    largest = float(atom.abs().max())
    return as_picture(0.5 + (atom / (2 * largest) if largest > 0 else atom))


def stretched(image: Tensor, like: Tensor) -> Tensor:
    """An image from 0 to 1 with the mean and contrast of another one, channels together."""
    spread = float(image.std())
    centred = (image - image.mean()) / spread if spread > 0 else image - image.mean()
    return (centred * like.std() + like.mean()).clamp(0, 1)


def enlarge(picture: Tensor, side: int) -> Tensor:
    """A uint8 picture scaled to ``side`` in height and width; pixels stay square blocks when it grows."""
    shrinks = side < picture.shape[1]
    scaled: Tensor = F.interpolate(
        picture[None].float(),
        size=(side, side),
        mode="bilinear" if shrinks else "nearest-exact",
        **({"antialias": True} if shrinks else {}),
    )[0]
    return scaled.round().clamp(0, 255).to(torch.uint8)


def framed(picture: Tensor, box: tuple[int, int, int, int]) -> Tensor:
    """A picture with the part of the box that lies in it framed; box as top, left, bottom, right (past the end)."""
    height, width = picture.shape[1:]
    top, left = max(0, box[0]), max(0, box[1])
    bottom, right = min(height, box[2]) - 1, min(width, box[3]) - 1
    marked = picture.clone()
    colour = torch.tensor(FRAME, dtype=torch.uint8)[:, None]
    for row in (top, bottom):
        marked[:, row, left : right + 1] = colour
    for column in (left, right):
        marked[:, top : bottom + 1, column] = colour
    return marked


def grid(pictures: Sequence[Tensor], n_columns: int, gap: int = 1) -> Tensor:
    """Pictures of one size in rows, with a gap between them; the last row may have holes."""
    n_rows = max(1, math.ceil(len(pictures) / n_columns))
    height, width = pictures[0].shape[1:]
    sheet = torch.full((3, n_rows * (height + gap) - gap, n_columns * (width + gap) - gap), PAPER, dtype=torch.uint8)
    for index, picture in enumerate(pictures):
        row, column = divmod(index, n_columns)
        top, left = row * (height + gap), column * (width + gap)
        sheet[:, top : top + height, left : left + width] = picture
    return sheet
