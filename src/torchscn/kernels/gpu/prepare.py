"""A Gram matrix made ready for the kernels, on its device: nothing is read back.

Atoms are scaled to unit norm, which spares the kernels the diagonal: codes are in units of what they contribute.
"""

import math

import torch
from torch import Tensor

from torchscn.kernels.gpu.gram import scale_gram, set_limits
from torchscn.kernels.rule import SweepRule
from torchscn.problem import Problem

__all__ = ["GRAM_OPTIONS", "PreparedGram", "power_of_two_at_least"]

GRAM_OPTIONS = {"CHUNK": 4, "num_warps": 4, "num_stages": 1}
_SQUARINGS = 3  # of M'M, whose trace then bounds its largest eigenvalue


class PreparedGram:
    """The Gram matrix of a problem, padded to a multiple of 16 atoms, with what the kernels need to know about it.

    Args:
        problem: whose matrix it is.
        rule: when a signal is done.
        multiple: of how many rows the halves are to be.

    Attributes:
        width: number of atoms, with padding.
        scaled: ``(width, width)``, unit diagonal.
        halves: the leading bits of every entry, as many as TF32 has, and the rest; more rows of padding.
        norms: of the atoms, ``(width,)``; 1 for padding and for atoms without energy.
        inverse: one over them; 0 for padding and for atoms without energy, whose codes stay 0.
        own: the square of what turns contributions into codes, up to a common factor.
        limits: when a signal is done, and more; see :func:`torchscn.kernels.gpu.gram.set_limits`.
        affordable: sweeps that are not worth an exact step.
        face_ridge: relative addition to the diagonal in exact steps.
        least_pivot: of exact steps; a smaller part of an atom is not told from none.
    """

    def __init__(self, problem: Problem, rule: SweepRule, multiple: int):
        gram = problem.gram.contiguous()
        n_atoms, ridge = len(gram), problem.constraint.ridge(gram.dtype)
        self.width = n_atoms + -n_atoms % 16
        padded_rows = self.width + -self.width % multiple
        self.scaled = gram.new_empty(self.width, self.width)
        self.halves = gram.new_empty(2, padded_rows, self.width)
        self.norms, self.inverse, self.own = gram.new_empty(3, self.width)
        pair, ratio = gram.new_empty(2, 2, n_atoms, n_atoms)
        system, about = torch.empty_like(gram), gram.new_empty(5)
        scale_gram[(1,)](
            *(gram, self.scaled, *self.halves, pair, system, ratio, self.norms, self.inverse, self.own, about),
            *(n_atoms, self.width, padded_rows, ridge),
            N=power_of_two_at_least(self.width),
            **GRAM_OPTIONS,
        )
        self.limits = _limits(pair, system, ratio, about, rule)
        # As in the compiled kernel (cpu/library.cpp).
        self.affordable = 16 + n_atoms / 16
        self.face_ridge = torch.finfo(gram.dtype).eps * (4 + math.sqrt(n_atoms))
        self.least_pivot = 2.5 * (self.face_ridge + ridge) if ridge else self.face_ridge


def _limits(pair: Tensor, system: Tensor, ratio: Tensor, about: Tensor, rule: SweepRule) -> Tensor:
    """The limits of the rule for steps that obey ``G error = W step`` with the matrix W of the system."""
    factors, info = torch.linalg.cholesky_ex(pair)
    # The error of codes for a step, in units of contributions and of codes.
    errors = torch.cholesky_solve(system, factors[0]) * ratio
    power = errors.mT @ errors
    trace = power.diagonal(dim1=-2, dim2=-1).sum(-1)
    power = power / trace[:, None, None]
    for _ in range(_SQUARINGS):
        power = power @ power
    limits = system.new_empty(7)
    # As in the compiled kernel (cpu/library.cpp): where a tile is judged as a whole, its tolerance holds for that.
    tol = math.inf if rule.by_block and rule.tol > 0 else rule.tol
    most_cancellation = max(1.25 * rule.tol**2 / torch.finfo(system.dtype).eps, 100.0)
    set_limits[(1,)](
        *(power, trace, factors, info, about, limits),
        *(len(system), tol, rule.promise, rule.rounding, most_cancellation),
        N=power_of_two_at_least(len(system)),
    )
    return limits


def power_of_two_at_least(size: int) -> int:
    """The smallest power of two that is at least as large as the size, and at least 16."""
    return max(16, 1 << (size - 1).bit_length())
