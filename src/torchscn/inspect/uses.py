"""Which images use an atom most, and where in them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from torchscn.data import ImageSet
from torchscn.inspect.stages import Stage, check_atom
from torchscn.inspect.surveys import LayerUse

__all__ = ["AtomUse", "crop", "most_used", "strongest_uses"]


@dataclass(frozen=True)
class AtomUse:
    """One place where an atom is used."""

    image: int  # index into the images of the survey
    row: int  # of the layer's positions
    column: int
    code: float

    def box(self, stage: Stage) -> tuple[int, int, int, int]:
        """Top, left, bottom and right (past the end) of the pixels that the layer sees there."""
        return stage.field.box(self.row, self.column)


def strongest_uses(use: LayerUse, atom: int, n_uses: int = 9) -> list[AtomUse]:
    """Where an atom is used most, at most once in every image; empty for a dead atom.

    Args:
        use: what the layer did, from :func:`survey`.
        atom: which atom.
        n_uses: how many places.
    """
    check_atom(use.stage, atom)
    codes = use.largest[:, atom]
    images = codes.abs().topk(min(n_uses, len(codes))).indices
    uses = []
    for code, image in zip(codes[images].tolist(), images.tolist(), strict=True):
        if code != 0:
            row, column = divmod(int(use.place[image, atom]), use.n_columns)
            uses.append(AtomUse(image, row, column, code))
    return uses


def most_used(use: LayerUse, n_atoms: int) -> list[int]:
    """The atoms with the largest codes on average, those used most first."""
    return use.usage.topk(min(n_atoms, use.stage.width)).indices.tolist()


def crop(images: ImageSet, use: AtomUse, stage: Stage, fill: int = 128) -> Tensor:
    """The pixels that a layer sees at a place, uint8 ``(channels, size, size)``; what is beyond the image is grey."""
    top, left, bottom, right = use.box(stage)
    image = images.images[use.image]
    height, width = image.shape[1:]
    beyond = [max(0, -left), max(0, right - width), max(0, -top), max(0, bottom - height)]
    padded: Tensor = F.pad(image.to(torch.int16), beyond, value=fill).to(torch.uint8)
    top, left = top + beyond[2], left + beyond[0]
    return padded[:, top : top + stage.field.size, left : left + stage.field.size]
