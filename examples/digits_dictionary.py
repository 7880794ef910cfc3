"""Learn a dictionary of handwritten digits through the layer, and draw its atoms, codes and reconstructions.

The 8 x 8 digits come with scikit-learn. The layer's gradient reaches the dictionary through the exact codes, so a
standard optimizer on the reconstruction error is all it takes.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import torch
from rich.progress import track
from sklearn.datasets import load_digits
from torch import Tensor

import torchscn

mpl.use("Agg")
import matplotlib.pyplot as plt


def load() -> Tensor:
    """All 1,797 digits as rows of 64 values between 0 and 1."""
    return torch.from_numpy(load_digits().data).float() / 16


def learn(x: Tensor, n_atoms: int, lam1: float, epochs: int) -> torchscn.SparseCoding:
    """A dictionary whose sparse codes rebuild ``x``."""
    layer = torchscn.SparseCoding(64, n_atoms, lam1=lam1, learn_lam1=False, unit_norm=True, tol=1e-4)
    optimizer = torch.optim.Adam([layer.dictionary], lr=0.01)
    for _ in track(range(epochs), description="learning the dictionary"):
        for rows in torch.randperm(len(x)).split(128):
            batch = x[rows]
            loss = torchscn.objective(batch, layer.atoms(), layer(batch), lam1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return layer


def draw(x: Tensor, layer: torchscn.SparseCoding, path: Path) -> None:
    """Atoms on the left; on the right some digits, their reconstructions and their codes."""
    codes = layer(x).detach()
    rebuilt = layer.reconstruct(codes).detach()
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 6), width_ratios=[1, 1.2], layout="constrained")
    left.imshow(tile(layer.atoms().detach(), columns=10), cmap="RdBu_r", vmin=-0.6, vmax=0.6)
    left.set_title(f"{layer.n_atoms} atoms")
    left.axis("off")
    right.axis("off")
    right.set_title("digit, reconstruction from its code, and the code")
    rows = 8
    for i in range(rows):
        top = 1 - (i + 1) / rows
        for column, image in enumerate((x[i], rebuilt[i])):
            axes = right.inset_axes((0.12 * column, top, 0.11, 0.9 / rows))
            axes.imshow(image.view(8, 8), cmap="gray_r", vmin=0, vmax=1)
            axes.axis("off")
        axes = right.inset_axes((0.28, top + 0.01, 0.72, 0.8 / rows))
        axes.bar(range(layer.n_atoms), codes[i].tolist(), color="C0")
        axes.set(xticks=[], yticks=[])
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def tile(patches: Tensor, columns: int) -> Tensor:
    """8 x 8 patches side by side, one blank pixel between them."""
    padded = torch.nn.functional.pad(patches.view(-1, 8, 8), (1, 1, 1, 1))
    side = padded.shape[-1]
    return padded.view(-1, columns, side, side).transpose(1, 2).reshape(-1, columns * side)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder for the picture")
    parser.add_argument("--atoms", type=int, default=100, help="number of atoms (a multiple of 10)")
    parser.add_argument("--lam1", type=float, default=0.1, help="l1 penalty; larger values use fewer atoms per code")
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    torch.manual_seed(0)
    x = load()
    layer = learn(x, options.atoms, options.lam1, options.epochs)
    solution = layer.solve(x)
    error = (layer.reconstruct(solution.codes) - x).norm() / x.norm()
    active = (solution.codes > 0).float().sum(-1).mean()
    print(f"relative reconstruction error {error:.3f} with {active:.1f} of {options.atoms} atoms per digit")
    print(f"largest KKT residual {solution.residual.max():.1e}, all converged: {bool(solution.converged.all())}")
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "digits_dictionary.png"
    draw(x, layer, path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
