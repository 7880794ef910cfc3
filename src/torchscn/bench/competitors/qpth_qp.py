"""qpth: an interior point method for batches of quadratic programs in torch, with exact gradients."""

import torch
from torch import Tensor

from torchscn.bench.packages import Package

__all__ = ["PACKAGE", "solve"]

PACKAGE = Package("qpth", module="qpth", install="qpth")


def solve(rhs: Tensor, gram: Tensor) -> Tensor:
    """Codes of a batch of problems, differentiable in both."""
    from qpth.qp import QPFunction

    n, nothing = rhs.shape[-1], rhs.new_empty(0)
    at_least_zero = -torch.eye(n, dtype=rhs.dtype), rhs.new_zeros(n)
    codes: Tensor = QPFunction(verbose=-1, check_Q_spd=False)(gram, -rhs, *at_least_zero, nothing, nothing)
    return codes
