"""Moreau: a conic solver for batches, with an active-set method for small quadratic programs and exact gradients."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchscn.bench.packages import Package

__all__ = ["PACKAGE", "prepare"]

PACKAGE = Package("Moreau", module="moreau", install="moreau")


def prepare(n_problems: int, n: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A function that solves a batch of this size, differentiable in both arguments; what is set up once is set up."""
    import moreau
    from moreau.torch import Solver

    every, settings = torch.arange(n), moreau.Settings(device="cpu", batch_size=n_problems)
    solver: Any = Solver(
        n=n,
        m=n,
        P_row_offsets=torch.arange(0, n * n + 1, n),
        P_col_indices=every.repeat(n),
        A_row_offsets=torch.arange(n + 1),
        A_col_indices=every,
        cones=moreau.Cones(num_nonneg_cones=n),
        settings=settings,
    )

    def solve(rhs: Tensor, gram: Tensor) -> Tensor:
        # The codes are the slack of -a + s = 0, which is at least zero.
        codes: Tensor = solver.solve(gram.flatten(1), -torch.ones_like(rhs), -rhs, torch.zeros_like(rhs)).x
        return codes

    return solve
