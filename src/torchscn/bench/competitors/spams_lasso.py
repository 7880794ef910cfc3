"""SPAMS: LARS for the lasso, in C++."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchscn.bench.packages import Package

__all__ = ["PACKAGE", "prepare", "solve"]

PACKAGE = Package("SPAMS", module="spams", install="spams-bin")


def prepare(x: Tensor, dictionary: Tensor) -> tuple[Any, Any]:
    """Signals and atoms in the layout of SPAMS."""
    return np.asfortranarray(x.T.numpy()), np.asfortranarray(dictionary.T.numpy())


def solve(signals: Any, atoms: Any, lam2: float, n_threads: int) -> Tensor:
    import spams

    codes = spams.lasso(signals, D=atoms, lambda1=0.0, lambda2=lam2, mode=2, pos=True, numThreads=n_threads)
    return torch.from_numpy(codes.toarray().T)
