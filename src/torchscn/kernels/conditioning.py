"""How far a code can still be from its optimum after a step of a given length; ``cpu/conditioning.h`` has it in C++."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchscn.constraints import NonNegative
from torchscn.kernels.rule import NOT_CONVEX, SweepRule
from torchscn.problem import Problem

__all__ = ["Conditioning", "StepLimit", "relaxation"]

_POWER_ITERATIONS = 6


@dataclass(frozen=True)
class StepLimit:
    """The longest step, relative to the codes, after which a signal is done."""

    length: Tensor  # in the units of what codes contribute
    code_length: Tensor  # in the units of codes
    norms: Tensor  # of the atoms

    def allows(self, step: Tensor, codes: Tensor) -> Tensor:
        """Which signals are done, in both units; atoms come last."""
        # Written so that NaN counts as done: a bad row never holds the others up.
        too_long = step.norm(dim=-1) > self.code_length * codes.norm(dim=-1)
        part_too_long = (step * self.norms).norm(dim=-1) > self.length * (codes * self.norms).norm(dim=-1)
        done: Tensor = ~(too_long | part_too_long)
        return done


class Conditioning:
    """A Gram matrix scaled to unit diagonal, and its Cholesky factor. Nothing is read back from the device.

    Args:
        gram: symmetric; entries that are not finite count as 0.
    """

    def __init__(self, gram: Tensor):
        self.gram = gram.nan_to_num(0, 0, 0)
        diagonal = self.gram.diagonal()
        self.norms = torch.where(diagonal > 0, diagonal.sqrt(), 1.0)
        self.identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        scaled = self.gram / self.norms / self.norms[:, None]
        self.scaled = scaled - torch.diag(scaled.diagonal()) + self.identity
        # Rounding errors of a step grow with the first, and with the second where they are measured in codes.
        self.overlap = self.scaled.norm(dim=-1).amax()
        self.unevenness = self.norms.amax() / torch.where(diagonal > 0, self.norms, torch.inf).amin()
        self.factor, info = torch.linalg.cholesky_ex(self.scaled)
        rounding = torch.finfo(gram.dtype).eps * len(gram)
        self.is_regular = (info == 0) & (self.factor.diagonal().square() > 4 * rounding).all()
        self.worst = 1 / rounding

    def check(self) -> None:
        """Raise ValueError if the matrix is indefinite beyond rounding; waits for the device."""
        energy, limits = self.gram.diagonal(), torch.finfo(self.gram.dtype)
        empty = energy <= 4 * limits.tiny / limits.eps
        # An atom without energy has no product with others, beyond what underflow explains.
        products = self.gram.square() > 4 * limits.tiny / limits.eps * energy
        contradicts = empty[:, None] & products & ~self.identity.bool()
        ridge = 32 * limits.eps * (len(self.gram) + 8)
        if (
            bool((energy < 0).any())
            or bool(contradicts.any())
            or not (self.is_regular or torch.linalg.cholesky_ex(self.scaled + ridge * self.identity).info == 0)
        ):
            raise ValueError(f"{NOT_CONVEX}.")

    def amplification(self, system: Tensor) -> Tensor:
        """Largest error per length of a step, where ``gram @ error = system @ step``.

        The larger one of two: in the units of codes, and in those of what codes contribute. Taken half as large again,
        because power iteration comes from below, and clipped codes can add a little.
        """
        error = torch.cholesky_solve(system / self.norms / self.norms[:, None], self.factor)
        found = 1.5 * torch.maximum(_norm(error), _norm(error * self.norms / self.norms[:, None]))
        return torch.where(self.is_regular, found, self.worst).nan_to_num(self.worst, self.worst).clamp(max=self.worst)

    def limit(self, rule: SweepRule, system: Tensor) -> StepLimit:
        """When a signal is done, for a solver whose steps obey ``gram @ error = system @ step``."""
        amplification = self.amplification(system)
        length = rule.largest_step(amplification, self.overlap)
        # Norms that differ little are not told apart, as in the compiled kernel.
        uneven = torch.where(self.unevenness > 4, self.unevenness, 1.0)
        return StepLimit(length, torch.maximum(length, rule.rounding * self.overlap * uneven), self.norms)

    def is_cancelling(self, problem: Problem, codes: Tensor, tol: float) -> Tensor:
        """For every signal, whether codes cancel each other so much that a singular matrix says nothing about them."""
        most = max(1.25 * tol**2 / torch.finfo(codes.dtype).eps, 100.0)
        parts = (codes * self.norms).square()
        if isinstance(problem.constraint, NonNegative):
            gain = (problem.linear() * codes).sum(-1)
        else:
            # What the codes stand for; on the orthant, at the optimum, that is the same. Codes at a bound are exact,
            # and others may be large because they are.
            fixed = problem.constraint.movable(codes) == 0
            gain = (codes @ problem.gram * codes).sum(-1) + (parts * fixed).sum(-1)
            parts = parts * ~fixed
        cancelling: Tensor = ~self.is_regular & (parts.sum(-1) > most * gain)
        return cancelling


def _norm(matrix: Tensor) -> Tensor:
    """Largest singular value by power iteration, from below."""
    # A start without structure, and without a random generator, which transforms of torch.func refuse.
    places = torch.arange(len(matrix), device=matrix.device, dtype=matrix.dtype)
    vector = torch.sin(1e4 * torch.sin(12.9898 * (places + 1)))
    for _ in range(_POWER_ITERATIONS):
        vector = matrix.mT @ (matrix @ (vector / vector.norm().clamp(min=torch.finfo(matrix.dtype).tiny)))
    length: Tensor = vector.norm().sqrt()
    return length


def relaxation(gram: Tensor) -> float:
    """Over-relaxation suited to a Gram matrix.

    Nearly orthogonal atoms want plain Gauss-Seidel; the more an atom overlaps the others (sum of its squared
    correlations, about n_atoms / n_features for random atoms), the more a longer step saves. The line was fitted to
    sweep counts on random dictionaries of 16 to 256 atoms; any value between 0 and 2 converges.

    Example:
        >>> relaxation(torch.eye(3))
        1.0
    """
    diagonal = gram.diagonal()
    energy = torch.where(diagonal > 0, diagonal, torch.inf)
    overlap = float((gram.square() / energy).sum(-1).div(energy).mean()) - 1.0
    # A matrix that is not finite falls through both bounds to 1; what is solved with it is marked anyway.
    return 1.0 + 0.4 * min(overlap, 1.0) if overlap > 0 else 1.0
