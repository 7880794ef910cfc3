"""Drawings made ready for a network: cut out, scaled and placed as the digits it was trained on were."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

__all__ = ["Frame", "center_drawing", "choose_frame"]

FAINT = 12  # levels up to this one are the soft edge of a stroke, and do not count for its extent
ROOMY = 20  # an image with sides of at least this many pixels is taken to have a margin, like those of MNIST


@dataclass(frozen=True)
class Frame:
    """How digits lie in the images of a data set.

    Args:
        size: height and width of an image.
        box: height and width of the box that a digit fills, the ratio of its sides kept.
        by_mass: whether the centre of mass of the digit is in the middle of the image, or the centre of its box.
    """

    size: tuple[int, int]
    box: tuple[int, int]
    by_mass: bool


def choose_frame(data: str, size: tuple[int, int]) -> Frame:
    """How to place drawings for a network that was trained on this data set and size of images.

    Digits of MNIST fill 20 of 28 pixels and are centred by mass, those of the data set ``digits`` fill their image;
    for other data sets the size decides which of them to follow.

    Example:
        >>> choose_frame("mnist", (28, 28))
        Frame(size=(28, 28), box=(20, 20), by_mass=True)
        >>> choose_frame("digits", (8, 8))
        Frame(size=(8, 8), box=(8, 8), by_mass=False)
    """
    if data == "mnist" or (data != "digits" and min(size) >= ROOMY):
        return Frame(size, (round(size[0] * 20 / 28), round(size[1] * 20 / 28)), by_mass=True)
    return Frame(size, size, by_mass=False)


def center_drawing(ink: Tensor, frame: Frame) -> Tensor:
    """A drawing of any size, as an image of the frame.

    Args:
        ink: uint8 ``(height, width)``, 0 where nothing was drawn.
        frame: where the digit goes.

    Returns:
        uint8 tensor ``(1, *frame.size)``; all 0 if nothing was drawn.

    Example:
        >>> ink = torch.zeros(100, 100, dtype=torch.uint8)
        >>> ink[10:50, 20:40] = 255
        >>> image = center_drawing(ink, choose_frame("mnist", (28, 28)))[0]
        >>> image.any(1).sum(), image.any(0).sum()
        (tensor(20), tensor(10))
    """
    image = torch.zeros(frame.size)
    drawn = ink > FAINT
    if drawn.any():
        digit = _scale_to_fit(ink[_extent(drawn.any(1)), _extent(drawn.any(0))].float(), frame.box)
        top, left = _corner(digit, frame)
        image[top : top + digit.shape[0], left : left + digit.shape[1]] = digit
    return image.round().clamp(0, 255).to(torch.uint8)[None]


def _extent(used: Tensor) -> slice:
    """From the first to the last true entry."""
    places = used.nonzero()
    return slice(int(places[0]), int(places[-1]) + 1)


def _scale_to_fit(digit: Tensor, box: tuple[int, int]) -> Tensor:
    """Scaled until it touches two sides of the box."""
    factor = min(most / side for most, side in zip(box, digit.shape, strict=True))
    size = [max(1, min(most, round(side * factor))) for most, side in zip(box, digit.shape, strict=True)]
    return F.interpolate(digit[None, None], size, mode="bilinear", antialias=True)[0, 0]


def _corner(digit: Tensor, frame: Frame) -> tuple[int, int]:
    """Where the first row and column of the digit go; nothing of it is cut off."""
    corner = []
    for side, length, profile in zip(frame.size, digit.shape, (digit.sum(1), digit.sum(0)), strict=True):
        # MNIST counts pixels from 0 and has the mass at half the side: at pixel 14 of 28, not between 13 and 14.
        mass = float((torch.arange(length) * profile).sum() / profile.sum())
        start = side / 2 - mass if frame.by_mass else (side - length) / 2
        corner.append(max(0, min(side - length, round(start))))
    return corner[0], corner[1]
