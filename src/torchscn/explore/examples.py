"""Test images to begin with, one of each class, if the data set is at hand."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchscn import data
from torchscn.network import Network

__all__ = ["Example", "find_examples"]

MOST = 20  # examples; of more classes, some are left out


class Example(NamedTuple):
    """A test image, and which class it shows."""

    pixels: Tensor  # uint8 (channels, height, width)
    label: int


def find_examples(name: str, network: Network, data_dir: str | Path | None = None) -> list[Example]:
    """The first test image of every class, of a data set that may be missing.

    Args:
        name: the data set, as for :func:`torchscn.data.load`.
        network: a network trained on it.
        data_dir: the data folder; by default the environment variable ``TORCHSCN_DATA``.

    Returns:
        No images if there is no such data set here, or if it is not the one that the network was trained on.

    Example:
        >>> from torchscn import create_model
        >>> find_examples("mnist", create_model("scn4", pretrained="mnist"), "nowhere")
        []
    """
    try:
        images = data.load(name, "test", data_dir)
    except Exception:  # examples are an extra, so nothing that is wrong with them keeps a network from being explored
        return []
    if images.classes != network.classes or images.images.shape[1:] != (
        network.in_channels,
        *(network.image_size or ()),
    ):
        return []
    firsts = [(images.labels == label).nonzero()[:1, 0] for label in range(len(images.classes))]
    found = torch.cat(firsts)
    chosen = images.take(found[torch.linspace(0, len(found) - 1, min(MOST, len(found))).long()])
    return [Example(*pair) for pair in zip(chosen.images, chosen.labels.tolist(), strict=True)]
