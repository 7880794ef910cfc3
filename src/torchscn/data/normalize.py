"""From bytes to numbers: scale to 0..1, subtract the training mean, optionally divide by the spread."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Normalization"]

LEVELS = 256
PIECE = 512  # images summed at a time


@dataclass(frozen=True, eq=False)
class Normalization:
    """``(pixels / 255 - mean) / std``, from uint8 to float32.

    Args:
        mean: float32, one per channel ``(channels, 1, 1)`` or per pixel ``(channels, height, width)``.
        std: float32, one per channel ``(channels, 1, 1)``; ones leave the scale unchanged.

    Example:
        >>> black_and_white = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1)
        >>> normalization = Normalization.fit(black_and_white)
        >>> normalization(black_and_white).flatten()
        tensor([-0.5000,  0.5000])
    """

    mean: Tensor
    std: Tensor

    def __post_init__(self) -> None:
        n_channels = len(self.mean) if self.mean.ndim == 3 else -1
        if self.mean.ndim != 3 or tuple(self.std.shape) != (n_channels, 1, 1):
            raise ValueError(
                "mean must be (channels, 1, 1) or (channels, height, width) and std (channels, 1, 1); "
                f"got {tuple(self.mean.shape)} and {tuple(self.std.shape)}."
            )

    @classmethod
    def fit(cls, images: Tensor, per_pixel: bool = False, divide: bool = False) -> "Normalization":
        """Measure the mean (and the spread) of the training images.

        Args:
            images: uint8 tensor ``(n, channels, height, width)``.
            per_pixel: one mean per pixel instead of one per channel.
            divide: also measure, per channel, the standard deviation around that mean; a constant channel counts as 1.

        Returns:
            The normalization that centres these images.
        """
        _check_bytes(images)
        if not len(images):
            raise ValueError(f"There are no images to measure; got shape {tuple(images.shape)}.")
        mean, mean_square = _pixel_means(images) if per_pixel else _channel_means(images)
        if divide:
            variance = mean_square - mean.square().mean((1, 2), keepdim=True)
            std = torch.where(variance > 0, variance, 1.0).sqrt()
        else:
            std = torch.ones_like(mean_square)
        return cls(mean.float(), std.float())

    def __call__(self, images: Tensor) -> Tensor:
        """Normalize a batch.

        Args:
            images: uint8 tensor ``(n, channels, height, width)`` on the device of the mean.

        Returns:
            float32 tensor of that shape in channels_last memory.

        Raises:
            ValueError: the mean is per pixel and belongs to images of another size.
        """
        _check_bytes(images)
        if self.mean.shape[1:] != (1, 1) and self.mean.shape[1:] != images.shape[2:]:
            raise ValueError(
                f"a mean per pixel was measured on images of {self.mean.shape[1]} x {self.mean.shape[2]}, so it does "
                f"not go with images of {images.shape[2]} x {images.shape[3]}."
            )
        pixels = images.to(torch.float32, memory_format=torch.channels_last)
        return pixels.mul_(1 / (255 * self.std)).sub_(self.mean / self.std)

    def state(self) -> dict[str, Tensor]:
        """Its tensors by name, to be saved with a model.

        Example:
            >>> sorted(Normalization.fit(torch.zeros(1, 3, 2, 2, dtype=torch.uint8)).state())
            ['mean', 'std']
        """
        return {"mean": self.mean, "std": self.std}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Normalization":
        """The normalization that :meth:`state` came from."""
        return cls(state["mean"], state["std"])


def _channel_means(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and mean square per channel, exact: both follow from how often each level occurs."""
    levels = torch.arange(LEVELS, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=LEVELS) for channel in images.unbind(1)])
    shares = counts.double() / counts.sum(1, keepdim=True)
    return (shares @ levels)[:, None, None], (shares @ levels.square())[:, None, None]


def _pixel_means(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean per pixel, and mean square per channel."""
    # In pieces, because torch widens what it sums to eight bytes per pixel.
    total = torch.stack([piece.sum(0, dtype=torch.int64) for piece in images.split(PIECE)]).sum(0)
    return total.double() / (255 * len(images)), _channel_means(images)[1]


def _check_bytes(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise TypeError(
            "images must be a uint8 tensor (n, channels, height, width) with levels 0 to 255; "
            f"got {images.dtype} of shape {tuple(images.shape)}."
        )
