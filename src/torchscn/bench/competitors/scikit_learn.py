"""scikit-learn's ``sparse_encode`` by coordinate descent; it has no l2 penalty, which enters as extra features."""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchscn.bench.packages import Package

__all__ = ["PACKAGE", "prepare", "solve"]

PACKAGE = Package("scikit-learn", module="sklearn", install="scikit-learn")


def prepare(x: Tensor, dictionary: Tensor, lam2: float) -> tuple[Any, Any]:
    """Signals and atoms with the extra features."""
    n_atoms = len(dictionary)
    zeros = np.zeros((len(x), n_atoms), dtype=np.float32)
    ridge = lam2**0.5 * np.eye(n_atoms, dtype=np.float32)
    return np.hstack([x.numpy(), zeros]), np.hstack([dictionary.numpy(), ridge])


def solve(signals: Any, atoms: Any, max_iter: int) -> Tensor:
    """With a vanishing l1 penalty its duality gap never closes, so it runs to ``max_iter``."""
    from sklearn.decomposition import sparse_encode
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        codes = sparse_encode(signals, atoms, algorithm="lasso_cd", alpha=1e-12, positive=True, max_iter=max_iter)
    return torch.from_numpy(codes)
