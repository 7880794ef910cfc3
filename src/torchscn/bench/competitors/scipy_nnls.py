"""scipy's ``nnls``, one right-hand side at a time: what people do who have many."""

from typing import Any

import numpy as np

from torchscn.bench.packages import Package

__all__ = ["PACKAGE", "solve"]

PACKAGE = Package("scipy", module="scipy", install="scipy")


def solve(matrices: Any, sides: Any) -> Any:
    """Solutions ``(n_problems, n)`` for one matrix or one each, and sides ``(n_problems, m)``."""
    import scipy.optimize

    each = matrices if matrices.ndim == 3 else [matrices] * len(sides)
    return np.stack([scipy.optimize.nnls(matrix, side)[0] for matrix, side in zip(each, sides, strict=True)])
