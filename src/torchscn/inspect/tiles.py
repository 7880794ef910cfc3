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

__all__ = ["Box", "Picture", "as_picture", "atom_picture", "blank", "enlarge", "grid", "stretched"]

Picture = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]
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
    values = np.nan_to_num(atom.numpy(), nan=0.0, posinf=0.0, neginf=0.0)
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


def enlarge(picture: Picture, side: int, box: Box | None = None) -> Picture:
    """A picture scaled to fit into a square tile; pixels stay blocks when it grows, and are averaged if it shrinks.

    Args:
        picture: the picture.
        side: of the tile.
        box: top, left, bottom, right (past the end) in pixels of the picture: the part to frame.
    """
    factor = side / max(picture.shape[:2])
    height, width = (max(1, round(n * factor)) for n in picture.shape[:2])
    scaled = _scale(picture, height, width)
    if box is not None:
        _frame(scaled, [round(edge * factor) for edge in box])
    tile = blank(side, PAPER)
    top, left = (side - height) // 2, (side - width) // 2
    tile[top : top + height, left : left + width] = scaled
    return tile


def _scale(picture: Picture, height: int, width: int) -> Picture:
    """A copy of another size."""
    if height < picture.shape[0]:
        from PIL import Image  # matplotlib needs it, too

        image = Image.fromarray(np.ascontiguousarray(picture))
        return np.array(image.resize((width, height), Image.Resampling.BILINEAR))
    rows, columns = (
        ((np.arange(side) + 0.5) * n / side).astype(int)
        for side, n in zip((height, width), picture.shape[:2], strict=True)
    )
    blocks: Picture = picture[rows][:, columns]
    return blocks


def _frame(picture: Picture, box: Sequence[int]) -> None:
    """Draw a thin frame around the part of the box that lies in the picture."""
    height, width = picture.shape[:2]
    top, left = max(0, box[0]), max(0, box[1])
    bottom, right = min(height, box[2]) - 1, min(width, box[3]) - 1
    picture[[top, bottom], left : right + 1] = FRAME
    picture[top : bottom + 1, [left, right]] = FRAME


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
