"""Problems for the tests, named for what is hard about them."""

import torch
from torch import Tensor, nn

from torchscn.problem import gradient


def random_dictionary(n_atoms: int, n_features: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_atoms, n_features, generator=generator, dtype=torch.float64) / n_features**0.5


def correlated_dictionary(n_atoms: int, n_features: int, seed: int = 0) -> Tensor:
    """Atoms that share a common direction: a badly conditioned Gram matrix."""
    D = random_dictionary(n_atoms, n_features, seed)
    return 0.4 * D + 0.6 * D.mean(0) * n_atoms**0.5


def deficient_dictionary(n_atoms: int, n_features: int, seed: int = 0) -> Tensor:
    """Atoms in a subspace of half their number: unique codes need lam2 > 0."""
    rank = max(1, n_atoms // 2)
    return random_dictionary(n_atoms, rank, seed) @ random_dictionary(rank, n_features, seed + 1)


def duplicate_dictionary(n_atoms: int, n_features: int, seed: int = 0) -> Tensor:
    D = random_dictionary(n_atoms, n_features, seed)
    D[n_atoms // 2] = D[0]
    return D


def zero_atom_dictionary(n_atoms: int, n_features: int, seed: int = 0) -> Tensor:
    D = random_dictionary(n_atoms, n_features, seed)
    D[n_atoms // 3] = 0
    return D


def bump_dictionary(n_atoms: int, n_features: int) -> Tensor:
    """Wide bumps side by side: neighbours are almost the same atom, so coordinate descent crawls."""
    centres = torch.linspace(0, 1, n_atoms, dtype=torch.float64)
    places = torch.linspace(0, 1, n_features, dtype=torch.float64)
    return torch.exp(-((places - centres[:, None]) ** 2) / 0.01)


DICTIONARIES = {
    "random": random_dictionary,
    "correlated": correlated_dictionary,
    "deficient": deficient_dictionary,
    "duplicate": duplicate_dictionary,
    "zero_atom": zero_atom_dictionary,
}


def signals(n_signals: int, n_features: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(n_signals, n_features, generator=generator, dtype=torch.float64)


def support_margin(x: Tensor, dictionary: Tensor, codes: Tensor, lam1: float | Tensor, lam2: float) -> float:
    """How far the nearest entry is from changing sides: the smallest positive code or off-support gradient."""
    grad = gradient(x, dictionary, codes, lam1, lam2)
    return torch.where(codes > 0, codes, grad).min().item()


class Residual(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return x + self.block(x)


def with_residual(model):
    model.blocks[1] = Residual(model.blocks[1])
    return model
