"""A Gram matrix made ready for the kernels, on its device: nothing is read back.

Atoms are scaled to unit norm, which spares the kernels the diagonal: codes are in units of what they contribute.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from torchscn.kernels.conditioning import Conditioning
from torchscn.kernels.rule import SweepRule
from torchscn.problem import Problem

__all__ = ["PreparedGram"]

_SQUARINGS = 4  # of a matrix whose trace then bounds its largest eigenvalue
_SAFETY = 1.4  # clipped codes can add a little to the error that linear algebra predicts


class PreparedGram:
    """The Gram matrix of a problem, padded to a multiple of 16 atoms, with what the kernels need to know about it.

    Attributes:
        width: number of atoms, with padding.
        scaled: ``(width, width)``, unit diagonal.
        norms: of the atoms, ``(n_atoms,)``; 1 for an atom without energy.
        inverse: one over them, ``(width,)``; 0 for padding and for atoms without energy, whose codes stay 0.
        own: the square of what turns contributions into codes, up to a common factor, ``(width,)``.
        limits: by number: 0 and 1, squares of the longest steps allowed, in units of codes and of contributions; 2, the
            shortest step that can be told from none; 3, NaN if the matrix is not finite, else 0; 4, how much codes may
            cancel each other, 0 for any; 5, relaxation.
        affordable: sweeps that are not worth an exact step.
        face_ridge: relative addition to the diagonal in exact steps.
        least_pivot: of exact steps; a smaller part of an atom is not told from none.
    """

    def __init__(self, problem: Problem, rule: SweepRule):
        gram = problem.gram
        n_atoms = len(gram)
        ridge = problem.constraint.ridge(gram.dtype)
        condition = Conditioning(gram + ridge * torch.diag(gram.diagonal()) if ridge else gram)
        self.width = n_atoms + -n_atoms % 16
        extra = self.width - n_atoms
        self.scaled = F.pad(condition.scaled, (0, extra, 0, extra))
        self.norms = condition.norms
        inverse = torch.where(gram.diagonal() > 0, 1 / condition.norms, 0.0)
        self.inverse = F.pad(inverse, (0, extra))
        self.own = (self.inverse / inverse.amax()).square().nan_to_num(1.0)
        relax = _relaxation(condition.scaled)
        # As in the compiled kernel (cpu/library.cpp): where a tile is judged as a whole, its tolerance holds for that.
        own_rule = rule._replace(tol=math.inf) if rule.by_block and rule.tol > 0 else rule
        length = own_rule.largest_step(_amplification(condition, relax), condition.overlap)
        uneven = torch.where(condition.unevenness > 4, condition.unevenness, 1.0)
        shortest = rule.rounding * condition.overlap
        eps = torch.finfo(gram.dtype).eps
        most = torch.where(condition.is_regular, 0.0, max(1.25 * rule.tol**2 / eps, 100.0))
        # As in the compiled kernel (cpu/library.cpp).
        self.affordable = 16 + n_atoms / 16
        self.face_ridge = eps * (4 + math.sqrt(n_atoms))
        self.least_pivot = 2.5 * (self.face_ridge + ridge) if ridge else self.face_ridge
        self.limits = torch.stack(
            [
                torch.maximum(length, shortest * uneven).square(),
                length.square(),
                shortest,
                (gram * 0).sum(),
                most,
                relax,
            ]
        )

    def split(self, multiple: int) -> tuple[Tensor, Tensor]:
        """The leading bits of every entry, as many as TF32 has, and the rest; rows padded to a multiple."""
        padded = F.pad(self.scaled, (0, 0, 0, -self.width % multiple))
        high = (padded.view(torch.int32) & -8192).view(torch.float32)
        return high, padded - high


def _relaxation(scaled: Tensor) -> Tensor:
    """Over-relaxation, as :func:`torchscn.kernels.conditioning.relaxation` chooses it."""
    return 1 + 0.4 * (scaled.square().sum() / len(scaled) - 1).clamp(0, 1)


def _amplification(condition: Conditioning, relax: Tensor) -> Tensor:
    """As :meth:`Conditioning.amplification`, in fewer and larger operations, and bounded from above."""
    system = condition.scaled.triu(1) + (1 - 1 / relax) * condition.identity
    error = torch.cholesky_solve(system, condition.factor)
    both = torch.stack([error, error * condition.norms / condition.norms[:, None]])
    found = _SAFETY * _norm_bound(both).amax()
    worst = condition.worst
    return torch.where(condition.is_regular, found, worst).nan_to_num(worst, worst).clamp(max=worst)


def _norm_bound(matrices: Tensor) -> Tensor:
    """At least the largest singular value of every matrix, and at most n^(1/32) times as much."""
    power, exponent = matrices.mT @ matrices, 0.5
    trace = power.diagonal(dim1=-2, dim2=-1).sum(-1)
    bound = trace.pow(exponent)
    for _ in range(_SQUARINGS):
        power = power / trace[:, None, None]
        power, exponent = power @ power, exponent / 2
        trace = power.diagonal(dim1=-2, dim2=-1).sum(-1)
        bound = bound * trace.pow(exponent)
    return bound
