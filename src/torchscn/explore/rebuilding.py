"""The structure that codes keep of an image, beside the original.

The way back from codes to pixels is linear, apart from constants. Networks that were trained to tell classes apart keep
structure rather than contrast, so in deeper layers the constants, and the borders they meet, outshine the rest.
Without them, and with brightness and contrast of the original, one sees what the codes still know.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchscn.inspect.inverse import rebuild
from torchscn.network import Network

__all__ = ["Matched", "match_contrast", "rebuild_structure"]

ROUNDING = 1e-5  # codes that differ less from their mean, relative to the largest, do not differ


class Matched(NamedTuple):
    """A rebuilt image with brightness and contrast of the original."""

    image: Tensor
    likeness: float  # correlation with the original, which does not depend on contrast


def rebuild_structure(network: Network, codes: Tensor, layer: int) -> Tensor:
    """What the differences between positions stand for in pixels: as :func:`torchscn.inspect.rebuild`, without means.

    Args:
        network: a trained network.
        codes: of an image, ``(1, width of the layer, height, width)``.
        layer: number of the layer.

    Returns:
        Changes of normalized images, around 0.
    """
    changes = codes - codes.mean((2, 3), keepdim=True)
    if changes.abs().amax() <= ROUNDING * codes.abs().amax():
        changes = torch.zeros_like(changes)
    return rebuild(network, changes, layer, differences=True)


def match_contrast(changes: Tensor, original: Tensor) -> Matched:
    """An image made of changes, with the mean of every channel and the contrast of the original.

    Args:
        changes: ``(images, channels, height, width)``.
        original: images of the same shape.

    Example:
        >>> original = torch.tensor([0.0, 1.0, 0.0, 3.0]).reshape(1, 1, 2, 2)
        >>> image, likeness = match_contrast(original / 8 + 5, original)
        >>> image.flatten(), round(likeness, 3)
        (tensor([0., 1., 0., 3.]), 1.0)
    """
    mean = original.mean((2, 3), keepdim=True)
    changes, wanted = changes - changes.mean((2, 3), keepdim=True), original - mean
    spread, contrast = float(changes.norm()), float(wanted.norm())
    if spread == 0 or contrast == 0:
        return Matched(mean.expand_as(original), 0.0)
    matched = changes / spread
    return Matched(mean + contrast * matched, float((matched * wanted).sum()) / contrast)
