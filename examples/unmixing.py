"""Unmix a hyperspectral image: how much of each material is in every pixel, with and without a sum of one.

A pixel's spectrum is a mixture of the spectra of a few materials (endmembers). Its abundances are not negative, which
is non-negative least squares (NNLS), and should sum to one, which is called fully constrained least squares (FCLS).
Both are solved here for all pixels in one call, beside the loop over scipy that people write today.

    python examples/unmixing.py path/to/samson.mat      # or jasper.mat; without a file, a synthetic image
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import scipy.io
import scipy.optimize
import torch
from rich.console import Console
from rich.table import Table

import torchscn

mpl.use("Agg")
import matplotlib.pyplot as plt

Array = npt.NDArray[np.float64]


class Scene(NamedTuple):
    """An image with what is known about it."""

    name: str
    pixels: Array  # (n_pixels, n_bands)
    endmembers: Array  # (n_materials, n_bands)
    abundances: Array  # (n_pixels, n_materials)
    shape: tuple[int, int]


def load(path: Path | None) -> Scene:
    """Samson (95 x 95 pixels, 156 bands) or Jasper Ridge (100 x 100, 198) from a .mat file, or a synthetic image."""
    if path is None:
        return synthetic()
    content = scipy.io.loadmat(path)
    if {"Y", "GT", "S_GT"} <= content.keys():
        truth = content["S_GT"].transpose(1, 0, 2)
        pixels, abundances = content["Y"].T, truth.reshape(-1, truth.shape[-1])
        spectra = in_brightness_of(pixels, content["GT"], abundances)
        return Scene("Samson", pixels, spectra, abundances, truth.shape[:2])
    if {"Y", "M", "A", "maxValue"} <= content.keys():
        pixels = content["Y"].T / float(content["maxValue"].item())
        side = (int(content["nRow"].item()), int(content["nCol"].item()))
        return Scene("Jasper Ridge", pixels, content["M"].T, content["A"].T, side)
    raise SystemExit(f"{path} has neither the fields of samson.mat (Y, GT, S_GT) nor those of jasper.mat (Y, M, A).")


def in_brightness_of(pixels: Array, spectra: Array, abundances: Array) -> Array:
    """Spectra that are known up to a factor, as bright as the pixels that show nothing else; sums need that."""
    pure = np.stack([pixels[own > 0.99].mean(0) for own in abundances.T])
    factors = (pure * spectra).sum(-1) / (spectra**2).sum(-1)
    brighter: Array = spectra * factors[:, None]
    return brighter


def synthetic(side: int = 100, n_bands: int = 150, n_materials: int = 4, noise: float = 0.01) -> Scene:
    """Smooth spectra mixed by smooth maps."""
    random = np.random.default_rng(0)
    bands = np.linspace(0, 1, n_bands)
    centres, widths = random.random((2, n_materials, 3))
    bumps = np.exp(-((bands - centres[..., None]) ** 2) / (0.02 + 0.1 * widths[..., None]) ** 2)
    endmembers = 0.2 + bumps.sum(1) / bumps.sum(1).max()
    y, x = np.mgrid[0:side, 0:side] / side
    phases = random.random((n_materials, 2)) * 2 * np.pi
    maps = np.stack([np.sin(7 * x + p) + np.sin(7 * y + q) for p, q in phases], axis=-1).reshape(-1, n_materials)
    abundances = np.exp(3 * maps)
    abundances = np.where(abundances < abundances.max(-1, keepdims=True) / 20, 0, abundances)
    abundances /= abundances.sum(-1, keepdims=True)
    pixels = abundances @ endmembers + noise * random.standard_normal((side * side, n_bands))
    return Scene("synthetic image", pixels, endmembers, abundances, (side, side))


def scipy_nnls(scene: Scene) -> Array:
    return np.stack([scipy.optimize.nnls(scene.endmembers.T, pixel)[0] for pixel in scene.pixels])


def scipy_fcls(scene: Scene, weight: float = 1e3) -> Array:
    """The usual way: the sum as one more, heavily weighted equation, so that it holds only roughly."""
    matrix = np.vstack([scene.endmembers.T, weight * np.ones(len(scene.endmembers))])
    targets = np.hstack([scene.pixels, np.full((len(scene.pixels), 1), weight)])
    return np.stack([scipy.optimize.nnls(matrix, target)[0] for target in targets])


def our_nnls(scene: Scene) -> Array:
    abundances: Array = torchscn.nnls(scene.endmembers.T, scene.pixels.T)[0].T
    return abundances


def our_fcls(scene: Scene) -> Array:
    pixels, endmembers = torch.from_numpy(scene.pixels), torch.from_numpy(scene.endmembers)
    abundances: Array = torchscn.sparse_code(pixels, endmembers, constraint="sum_to_one").numpy()
    return abundances


def measure(method: Callable[[Scene], Array], scene: Scene) -> tuple[Array, float]:
    """Abundances, and the seconds they took: of two runs the shorter one."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        found = method(scene)
        seconds.append(time.perf_counter() - start)
    return found, min(seconds)


def draw(scene: Scene, found: dict[str, Array], path: Path) -> None:
    """Spectra on the left; a row of abundance maps for the truth and for each method."""
    rows = {"known": scene.abundances, **found}
    n_materials = len(scene.endmembers)
    figure = plt.figure(figsize=(3.2 + 2 * n_materials, 2 * len(rows)), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=[3.2, 2 * n_materials])
    left, right = halves
    axes = left.subplots()
    for number, spectrum in enumerate(scene.endmembers):
        axes.plot(spectrum, label=f"material {number + 1}")
    axes.set(title=f"{scene.name}: endmembers", xlabel="band", ylabel="reflectance")
    left.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    grid = right.subplots(len(rows), n_materials, squeeze=False)
    image: Any = None
    for line, (title, abundances) in zip(grid, rows.items(), strict=True):
        for number, axes in enumerate(line):
            image = axes.imshow(abundances[:, number].reshape(scene.shape), vmin=0, vmax=1, cmap="viridis")
            axes.set(xticks=[], yticks=[])
            if axes in grid[0]:
                axes.set_title(f"material {number + 1}")
        line[0].set_ylabel(title)
    right.colorbar(image, ax=grid, shrink=0.6, label="abundance")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scene", type=Path, nargs="?", help="samson.mat or jasper.mat; a synthetic image if left out")
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder for the picture")
    options = parser.parse_args()
    scene = load(options.scene)
    print(
        f"{scene.name}: {len(scene.pixels):,} pixels, {len(scene.endmembers)} materials, {scene.pixels.shape[1]} bands"
    )
    table = Table("", "seconds", "error of abundances", "sum off by", "relative misfit")
    methods = {"NNLS, scipy": scipy_nnls, "NNLS": our_nnls, "FCLS, scipy": scipy_fcls, "FCLS": our_fcls}
    found = {}
    for name, method in methods.items():
        abundances, seconds = measure(method, scene)
        found[name] = abundances
        error = np.sqrt(np.mean((abundances - scene.abundances) ** 2))
        off = np.abs(abundances.sum(-1) - 1).max()
        misfit = np.linalg.norm(scene.pixels - abundances @ scene.endmembers) / np.linalg.norm(scene.pixels)
        table.add_row(name, f"{seconds:.4f}", f"{error:.4f}", f"{off:.1e}", f"{misfit:.4f}")
    Console().print(table)
    for ours, theirs in (("NNLS", "NNLS, scipy"), ("FCLS", "FCLS, scipy")):
        print(f"{ours}: largest difference from scipy {np.abs(found[ours] - found[theirs]).max():.1e}")
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "unmixing.png"
    draw(scene, {name: found[name] for name in ("NNLS", "FCLS")}, path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
