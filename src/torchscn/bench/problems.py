"""The problems of the benchmarks, in one place."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchscn.models import scn_table

__all__ = ["DENSE", "DenseProblem", "ImageBatch", "LayerSize", "layer_sizes"]


@dataclass(frozen=True)
class DenseProblem:
    """Gaussian signals and atoms of about unit norm."""

    n_signals: int = 20_000
    n_features: int = 144
    n_atoms: int = 64
    lam2: float = 1e-3

    def make(self) -> tuple[Tensor, Tensor]:
        """Signals and dictionary, always the same."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.n_signals, self.n_features, generator=generator)
        return x, torch.randn(self.n_atoms, self.n_features, generator=generator) / self.n_features**0.5


DENSE = DenseProblem()


@dataclass(frozen=True)
class ImageBatch:
    """Random images and labels for a training step."""

    batch: int = 128
    size: int = 32

    def make(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.batch, 3, self.size, self.size, generator=generator)
        labels = torch.randint(10, (self.batch,), generator=generator)
        return x.contiguous(memory_format=torch.channels_last), labels


@dataclass(frozen=True)
class LayerSize:
    """One sparse coding layer of a network."""

    in_channels: int
    n_atoms: int
    size: int  # of its output

    def __str__(self) -> str:
        return f"{self.in_channels} to {self.n_atoms}, {self.size} x {self.size}"


def layer_sizes(width: int, image_size: int = 32) -> list[LayerSize]:
    """The different layers of SCN-``width`` at stride 1, in order."""
    sizes: list[LayerSize] = []
    channels, side = 3, image_size
    for row in scn_table(width):
        side //= row.stride
        layer = LayerSize(channels, row.width, side)
        if row.stride == 1 and layer not in sizes:
            sizes.append(layer)
        channels = row.width
    return sizes
