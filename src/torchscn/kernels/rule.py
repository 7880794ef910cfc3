"""What every kernel is told besides the problem, and what a kernel is."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchscn.problem import Problem, Result

__all__ = ["NOT_CONVEX", "SweepRule", "Sweeps", "VanishingAtomError"]


class SweepRule(NamedTuple):
    """How to sweep, and when to stop."""

    tol: float  # accuracy to aim at, relative to the codes; 0 runs all max_iter sweeps
    max_iter: int  # cap on the sweeps
    by_block: bool = False  # a kernel may judge neighbouring signals as a whole
    promise: float = math.inf  # the largest error, relative to the codes, of what is called converged
    rounding: float = 0.0  # the shortest step, relative to the codes, that can be told from none for orthogonal atoms
    finishes: bool = False  # take exact steps on the support where sweeps would take long

    def largest_step(self, amplification: Tensor, overlap: Tensor) -> Tensor:
        """The longest step, relative to the codes, of a signal that is done; see ``Conditioning``."""
        if self.tol == 0:
            return torch.zeros_like(amplification)
        # As in the compiled kernel (cpu/library.cpp), which says why.
        promised, rounding = self.promise / amplification, self.rounding * overlap
        strict = torch.maximum(promised * (30 / amplification).clamp(max=1), 2 * rounding)
        return torch.minimum(promised, strict).clamp(max=self.tol).maximum(rounding)


class VanishingAtomError(ValueError):
    """An atom has a diagonal entry of zero in the Gram matrix, or one lost to underflow, and would get a code."""

    def __init__(self) -> None:
        super().__init__(
            "an atom whose diagonal entry in the Gram matrix is 0, or lost to underflow, has a positive right-hand "
            "side, so that its code would be infinite; scale the dictionary, for example to norms around 1."
        )


NOT_CONVEX = "the Gram matrix is not positive semi-definite, so there may be no optimum"

Sweeps = Callable[[Problem, SweepRule], Result]
"""A kernel: Gauss-Seidel sweeps over the atoms."""
