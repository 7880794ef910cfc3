"""Labelled images, entirely in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["ImageSet"]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images of one size, entirely in memory.

    Args:
        name: what to call the set in messages and tables.
        images: uint8 tensor ``(n, channels, height, width)``.
        labels: int64 tensor ``(n,)``, each an index into ``classes``.
        classes: the name of every class.

    Example:
        >>> images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
        >>> dots = ImageSet("dots", images, torch.tensor([0, 1, 1, 0]), ("no", "yes"))
        >>> dots
        ImageSet('dots': 4 images of 1x2x2, 2 classes)
        >>> dots.take([1, 2]).labels
        tensor([1, 1])
    """

    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_images(self.images)
        _check_labels(self.labels, len(self.images), len(self.classes))

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        size = "x".join(map(str, self.images.shape[1:]))
        return f"ImageSet({self.name!r}: {len(self)} images of {size}, {len(self.classes)} classes)"

    def take(self, indices: Tensor | Sequence[int]) -> "ImageSet":
        """The images at ``indices``, in that order, with the same name and classes.

        Args:
            indices: whole numbers from 0 to ``len(self) - 1``; a boolean tensor keeps the images marked true.

        Returns:
            A new :class:`ImageSet` with copies of those images.
        """
        rows = indices if isinstance(indices, Tensor) else torch.tensor(indices, dtype=torch.int64)
        return replace(self, images=self.images[rows], labels=self.labels[rows])

    def split(self, n_validation: int, seed: int) -> tuple["ImageSet", "ImageSet"]:
        """Set ``n_validation`` images aside at random; the same seed always picks the same ones.

        Args:
            n_validation: how many, at least 1 and fewer than there are.
            seed: chooses which.

        Returns:
            ``(train, validation)``, each in the order of this set.

        Example:
            >>> blank = torch.zeros(10, 1, 1, 1, dtype=torch.uint8)
            >>> ten = ImageSet("ten", blank, torch.arange(10), tuple("abcdefghij"))
            >>> train, validation = ten.split(3, seed=0)
            >>> len(train), len(validation)
            (7, 3)
        """
        if not 0 < n_validation < len(self):
            raise ValueError(
                f"n_validation must leave images on both sides: between 1 and {len(self) - 1} for the "
                f"{len(self)} images of {self.name!r}; got {n_validation}."
            )
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        held_out = order[:n_validation].sort().values
        kept = order[n_validation:].sort().values
        return self.take(kept), self.take(held_out)


def _check_images(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(
            "images must be a uint8 tensor (n, channels, height, width); "
            f"got {images.dtype} of shape {tuple(images.shape)}. Grey images need one channel: images[:, None]."
        )


def _check_labels(labels: Tensor, n_images: int, n_classes: int) -> None:
    if labels.dtype != torch.int64 or tuple(labels.shape) != (n_images,):
        raise ValueError(
            f"labels must be an int64 tensor of shape ({n_images},), one per image; "
            f"got {labels.dtype} of shape {tuple(labels.shape)}."
        )
    if n_images and not (labels.min() >= 0 and labels.max() < n_classes):
        raise ValueError(
            f"labels must lie between 0 and {n_classes - 1} for {n_classes} classes; "
            f"they run from {int(labels.min())} to {int(labels.max())}."
        )
