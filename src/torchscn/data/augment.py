"""Random shifts, mirror images and holes, and other sizes, on a whole batch at once."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from torchscn.data.errors import check_count

__all__ = ["Augmentation", "Draws", "resize"]


@dataclass(frozen=True, eq=False)
class Draws:
    """The random choices for every image of a batch; all tensors ``(n,)``.

    Args:
        down: pixels the image moves down (up if negative).
        right: pixels it moves to the right (left if negative).
        mirrored: whether left and right are swapped, before the move.
        hole_row: row of the hole's centre.
        hole_column: column of the hole's centre.
    """

    down: Tensor
    right: Tensor
    mirrored: Tensor
    hole_row: Tensor
    hole_column: Tensor

    def every(self, step: int, start: int = 0) -> "Draws":
        """The draws of the images ``start::step``."""
        rows = slice(start, None, step)
        return Draws(
            self.down[rows], self.right[rows], self.mirrored[rows], self.hole_row[rows], self.hole_column[rows]
        )


@dataclass(frozen=True)
class Augmentation:
    """Random shifts, flips and holes; pixels from outside the image are zero, the mean of normalized images.

    Args:
        shift: move by up to this many pixels, each way.
        flip: mirror left and right with probability one half.
        cutout: set a square of this side to zero; its centre is anywhere in the image, so part of it may lie outside.
        per_image: draw for every image; ``False`` draws once for the whole batch, as in the paper.
        alternate_flip: mirror every image in every other epoch, half of them in the first, instead of at random;
            :class:`Batches`, which knows the epoch, sees to it.

    Example:
        >>> augmentation = Augmentation(shift=4, flip=True)
        >>> augmentation(torch.randn(8, 3, 32, 32), torch.Generator().manual_seed(0)).shape
        torch.Size([8, 3, 32, 32])
    """

    shift: int = 0
    flip: bool = False
    cutout: int = 0
    per_image: bool = True
    alternate_flip: bool = False

    def __post_init__(self) -> None:
        check_count("shift", self.shift, at_least=0)
        check_count("cutout", self.cutout, at_least=0)
        if self.alternate_flip and not (self.flip and self.per_image):
            raise ValueError("alternate_flip needs flip and per_image.")

    def check_fits(self, height: int, width: int) -> None:
        """Check that shift and cutout are no larger than images of this size."""
        for name, pixels in (("shift", self.shift), ("cutout", self.cutout)):
            if pixels > min(height, width):
                raise ValueError(f"{name}={pixels} is larger than the images, which have {height} x {width} pixels.")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augment a normalized batch.

        Args:
            x: float tensor ``(n, channels, height, width)``; not modified.
            generator: source of randomness, on the CPU.

        Returns:
            A new tensor like ``x``, in channels_last memory.
        """
        n_images, _, height, width = x.shape
        return self.apply(x, self.draw(n_images, height, width, generator))

    def draw(self, n_images: int, height: int, width: int, generator: torch.Generator) -> Draws:
        """Draw the random choices for ``n_images`` images; separate from :meth:`apply`, so that ranks can share them.

        Args:
            n_images: number of images.
            height: rows of an image.
            width: columns of an image.
            generator: source of randomness, on the CPU; it advances equally far whatever options are on.

        Returns:
            One entry per image, all equal unless ``per_image``.
        """
        n_draws = n_images if self.per_image else 1
        lows_and_highs = [(-self.shift, self.shift + 1)] * 2 + [(0, 2), (0, height), (0, width)]
        drawn = [torch.randint(low, high, (n_draws,), generator=generator) for low, high in lows_and_highs]
        down, right, mirrored, hole_row, hole_column = (values.expand(n_images) for values in drawn)
        return Draws(down, right, (mirrored == 1) & self.flip, hole_row, hole_column)

    def apply(self, x: Tensor, draws: Draws) -> Tensor:
        """Apply what was drawn.

        Args:
            x: float tensor ``(n, channels, height, width)``; not modified.
            draws: one entry per image.

        Returns:
            A new tensor like ``x``, in channels_last memory.
        """
        n_images, n_channels, height, width = x.shape
        source = _source_pixels(draws, height, width)  # (n, height, width)
        if self.cutout:
            source.masked_fill_(_hole(draws, height, width, self.cutout), n_images * height * width)
        # One row per pixel, and a last row of zeros for everything from outside the image.
        pixels = x.permute(0, 2, 3, 1).reshape(-1, n_channels)
        pixels = torch.cat([pixels, pixels.new_zeros(1, n_channels)])
        moved = pixels.index_select(0, source.flatten().to(x.device))
        return moved.view(n_images, height, width, n_channels).permute(0, 3, 1, 2)


def resize(x: Tensor, scale: float) -> Tensor:
    """The images with their sides scaled; what gets smaller is averaged.

    Example:
        >>> resize(torch.ones(1, 3, 32, 32), 0.75).shape
        torch.Size([1, 3, 24, 24])
    """
    if scale == 1:
        return x
    size = [max(1, round(side * scale)) for side in x.shape[2:]]
    return F.interpolate(x, size, mode="bilinear", antialias=True)


def _source_pixels(draws: Draws, height: int, width: int) -> Tensor:
    """For every pixel of every image, the number of the pixel it comes from; outside is number n * height * width."""
    n_images = len(draws.down)
    rows = torch.arange(height) - draws.down[:, None]  # (n, height)
    columns = torch.arange(width) - draws.right[:, None]  # (n, width)
    inside = _within(rows, height)[:, :, None] & _within(columns, width)[:, None, :]
    columns = torch.where(draws.mirrored[:, None], width - 1 - columns, columns)
    first_rows = torch.arange(n_images)[:, None] * height
    numbers = ((first_rows + rows) * width)[:, :, None] + columns[:, None, :]
    return torch.where(inside, numbers, n_images * height * width)


def _hole(draws: Draws, height: int, width: int, side: int) -> Tensor:
    """Mask ``(n, height, width)`` of the squares to blank."""
    rows = torch.arange(height) - (draws.hole_row - side // 2)[:, None]
    columns = torch.arange(width) - (draws.hole_column - side // 2)[:, None]
    return _within(rows, side)[:, :, None] & _within(columns, side)[:, None, :]


def _within(values: Tensor, bound: int) -> Tensor:
    return (values >= 0) & (values < bound)
