"""Small pictures laid side by side into one, pixel by pixel.

A picture is a uint8 array ``(height, width, 3)``. In NumPy: hundreds of tiny operations would keep torch's threads
waiting for each other.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

__all__ = ["Picture", "as_picture", "atom_picture", "blank", "enlarge", "framed", "grid", "stretched"]

Picture = npt.NDArray[np.uint8]
PAPER = 255  # between tiles
FRAME = (255, 140, 0)


def as_picture(image: Tensor | npt.NDArray[Any]) -> Picture:
    """An image ``(channels, height, width)``, uint8 or with values from 0 to 1, as a picture.

    Of images with neither one nor three channels, the mean over channels is shown.
    """
    values = image.numpy() if isinstance(image, Tensor) else image
    if values.dtype != np.uint8:
        values = np.rint(values.clip(0, 1) * 255).astype(np.uint8)
    if len(values) not in (1, 3):
        values = np.rint(values.mean(0, keepdims=True)).astype(np.uint8)
    return np.broadcast_to(values.transpose(1, 2, 0), (*values.shape[1:], 3))


def atom_picture(atom: Tensor) -> Picture:
    """A change of the image around mid-grey, as strong as the range allows."""
    values = atom.numpy()
    largest = float(np.abs(values).max())
    return as_picture(0.5 + (values / (2 * largest) if largest > 0 else values))


def stretched(image: Tensor, like: Tensor) -> npt.NDArray[Any]:
    """An image with the mean and contrast of another one, channels together."""
    values, other = image.numpy(), like.numpy()
    spread = float(values.std())
    centred = (values - values.mean()) / spread if spread > 0 else values - values.mean()
    result: npt.NDArray[Any] = centred * other.std() + other.mean()
    return result


def blank(side: int, level: int = 235) -> Picture:
    """An empty tile."""
    return np.full((side, side, 3), level, np.uint8)


def enlarge(picture: Picture, side: int) -> Picture:
    """A picture scaled to ``side`` in height and width; pixels stay blocks when it grows, and are averaged if not."""
    if side < max(picture.shape[:2]):
        from PIL import Image  # matplotlib needs it, too

        scaled = Image.fromarray(np.ascontiguousarray(picture)).resize((side, side), Image.Resampling.BILINEAR)
        return np.asarray(scaled)
    rows, columns = (((np.arange(side) + 0.5) * n / side).astype(int) for n in picture.shape[:2])
    blocks: Picture = picture[rows][:, columns]
    return blocks


def framed(picture: Picture, box: tuple[int, int, int, int]) -> Picture:
    """A picture with the part of the box that lies in it framed; box as top, left, bottom, right (past the end)."""
    height, width = picture.shape[:2]
    top, left = max(0, box[0]), max(0, box[1])
    bottom, right = min(height, box[2]) - 1, min(width, box[3]) - 1
    marked = picture.copy()
    marked[[top, bottom], left : right + 1] = FRAME
    marked[top : bottom + 1, [left, right]] = FRAME
    return marked


def grid(pictures: Sequence[Picture], n_columns: int, gap: int = 1) -> Picture:
    """Pictures of one size in rows, with a gap between them; the last row may have holes."""
    n_rows = math.ceil(len(pictures) / n_columns)
    height, width = pictures[0].shape[:2]
    sheet = np.full((n_rows * (height + gap) - gap, n_columns * (width + gap) - gap, 3), PAPER, np.uint8)
    for index, picture in enumerate(pictures):
        row, column = divmod(index, n_columns)
        top, left = row * (height + gap), column * (width + gap)
        sheet[top : top + height, left : left + width] = picture
    return sheet
