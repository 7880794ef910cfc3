"""The problems of the benchmarks, in one place."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchscn.models import scn_table

__all__ = [
    "DENSE",
    "MANY_MATRICES",
    "UNMIXING",
    "DenseProblem",
    "ImageBatch",
    "LayerSize",
    "ManyMatrices",
    "Unmixing",
    "layer_sizes",
]


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
class Unmixing:
    """Pixels of few materials with smooth, similar spectra: shares that add up to one, and noise of 0.01, float64."""

    n_pixels: int = 100_000
    n_bands: int = 200
    n_materials: int = 8
    width: float = 0.2  # of a bump in a spectrum; condition of the Gram matrix 4e4

    def __str__(self) -> str:
        return f"{self.n_pixels:,} pixels, {self.n_bands} bands, {self.n_materials} materials"

    def make(self) -> tuple[Tensor, Tensor]:
        """Spectra as columns ``(n_bands, n_materials)`` and pixels as columns ``(n_bands, n_pixels)``."""
        generator = torch.Generator().manual_seed(0)
        place = torch.linspace(0, 1, self.n_bands, dtype=torch.float64)[:, None]
        centres = torch.linspace(0.1, 0.9, self.n_materials, dtype=torch.float64)
        spectra = torch.exp(-(((place - centres) / self.width) ** 2)) + 0.1
        shares = -torch.rand(self.n_materials, self.n_pixels, generator=generator, dtype=torch.float64).log()
        noise = torch.randn(self.n_bands, self.n_pixels, generator=generator, dtype=torch.float64)
        return spectra, spectra @ (shares / shares.sum(0)) + 0.01 * noise


UNMIXING = Unmixing()


@dataclass(frozen=True)
class ManyMatrices:
    """Gaussian problems with a matrix each, float64."""

    n_problems: int
    n_atoms: int
    n_features: int

    def __str__(self) -> str:
        return f"{self.n_problems:,} matrices, {self.n_features} x {self.n_atoms}"

    def make(self) -> tuple[Tensor, Tensor]:
        """Signals ``(n_problems, n_features)`` and dictionaries ``(n_problems, n_atoms, n_features)``."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.n_problems, self.n_features, generator=generator, dtype=torch.float64)
        shape = (self.n_problems, self.n_atoms, self.n_features)
        return x, torch.randn(shape, generator=generator, dtype=torch.float64)


MANY_MATRICES = (ManyMatrices(10_000, 5, 10), ManyMatrices(512, 64, 144))


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
