"""Separate the stains of a histology picture: how much of each dye is in every pixel.

Dyes absorb light, so their optical densities add up. With one absorption spectrum per dye (Ruifrok and Johnston, 2001)
the amounts follow from three colours by inverting a matrix, which is what is done today, but noise then makes amounts
negative. They cannot be: non-negative least squares finds the best ones that are not. The picture comes with
scikit-image: haematoxylin (blue) marks nuclei, DAB (brown) a protein.

    python examples/stains.py                 # or --image with a picture of your own
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import scipy.optimize
from rich.console import Console
from rich.table import Table

import torchscn

mpl.use("Agg")
import matplotlib.pyplot as plt

try:
    import skimage
except ImportError:
    raise SystemExit("this example compares with scikit-image: pip install scikit-image") from None

Array = npt.NDArray[np.float64]
STAINS = ("haematoxylin", "eosin", "DAB")
N_LOOPED = 5_000  # pixels that scipy is timed on


def load(path: Path | None) -> npt.NDArray[np.uint8]:
    """A colour picture, ``(height, width, 3)``."""
    library: Any = skimage
    picture = library.io.imread(path) if path else library.data.immunohistochemistry()
    if picture.ndim != 3 or picture.shape[-1] < 3 or picture.dtype != np.uint8:
        raise SystemExit(f"{path} must be a colour picture with 8 bits a channel; it has the shape {picture.shape}.")
    return np.asarray(picture[..., :3])


def optical_density(picture: npt.NDArray[np.uint8]) -> Array:
    """``(n_pixels, 3)``: what the dyes absorb, in powers of ten; zero for white."""
    return -np.log10((picture.reshape(-1, 3) + 1.0) / 256)


def by_inverse(density: Array, dyes: Array) -> Array:
    amounts: Array = density @ np.linalg.inv(dyes)
    return amounts


def by_nnls(density: Array, dyes: Array) -> Array:
    amounts: Array = torchscn.nnls(dyes.T, density.T)[0].T
    return amounts


def by_scipy(density: Array, dyes: Array) -> Array:
    return np.stack([scipy.optimize.nnls(dyes.T, pixel)[0] for pixel in density])


def measure(method: Callable[[Array, Array], Array], density: Array, dyes: Array) -> tuple[Array, float]:
    """Amounts, and the seconds they took: of two runs the shorter one."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        amounts = method(density, dyes)
        seconds.append(time.perf_counter() - start)
    return amounts, min(seconds)


def draw(picture: npt.NDArray[np.uint8], amounts: dict[str, Array], path: Path) -> None:
    """The picture, and a row of amounts for each method; red is negative."""
    figure = plt.figure(figsize=(13, 6.4), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=[1, 2])
    left, right = halves
    axes = left.subplots()
    axes.imshow(picture)
    axes.set(title="picture", xticks=[], yticks=[])
    most = np.quantile(amounts["non-negative"], 0.99)
    grid = right.subplots(len(amounts), len(STAINS))
    for line, (title, values) in zip(grid, amounts.items(), strict=True):
        for number, axes in enumerate(line):
            image = values[:, number].reshape(picture.shape[:2])
            axes.imshow(image, cmap="RdGy", vmin=-most, vmax=most)
            axes.set(xticks=[], yticks=[], title=STAINS[number])
        line[0].set_ylabel(title)
    right.suptitle("amount of each dye (grey to black; negative amounts red)")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", type=Path, help="a colour picture of your own")
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder for the picture")
    options = parser.parse_args()
    picture = load(options.image)
    density, dyes = optical_density(picture), np.asarray(skimage.color.rgb_from_hed)
    print(f"{picture.shape[1]} x {picture.shape[0]} pixels")
    inverse, inverse_seconds = measure(by_inverse, density, dyes)
    ours, our_seconds = measure(by_nnls, density, dyes)
    some, scipy_seconds = measure(by_scipy, density[:N_LOOPED], dyes)
    scipy_seconds *= len(density) / N_LOOPED
    table = Table("", "seconds", "negative amounts", "relative misfit")
    for name, amounts, seconds in (
        ("inverse", inverse, f"{inverse_seconds:.3f}"),
        ("inverse, negative ones set to zero", inverse.clip(min=0), f"{inverse_seconds:.3f}"),
        ("non-negative", ours, f"{our_seconds:.3f}"),
        ("non-negative, scipy in a loop", None, f"{scipy_seconds:.0f} (from {N_LOOPED:,} pixels)"),
    ):
        if amounts is None:
            table.add_row(name, seconds, "", "")
            continue
        misfit = np.linalg.norm(density - amounts @ dyes) / np.linalg.norm(density)
        table.add_row(name, seconds, f"{np.mean(amounts < 0):.1%}", f"{misfit:.4f}")
    Console().print(table)
    print(f"largest difference from scipy {np.abs(ours[:N_LOOPED] - some).max():.1e}")
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "stains.png"
    draw(picture, {"inverse": inverse, "non-negative": ours}, path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
