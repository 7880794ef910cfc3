"""How far a code can still be from its optimum after a step of a given length; ``cpu/conditioning.h`` has it in C++."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchscn.kernels.rule import NOT_CONVEX

__all__ = ["Conditioning", "StepLimit", "relaxation"]

_POWER_ITERATIONS = 6


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
        self.overlap = self.scaled.norm(dim=-1).amax()  # rounding errors of a step grow with it
        self.factor, info = torch.linalg.cholesky_ex(self.scaled)
        rounding = torch.finfo(gram.dtype).eps * len(gram)
        self.is_regular = (info == 0) & (self.factor.diagonal().square() > 4 * rounding).all()
        self.worst = 1 / rounding

    def check(self) -> None:
        """Raise ValueError if the matrix is indefinite beyond rounding; waits for the device."""
        if bool((self.gram.diagonal() < 0).any()):
            raise ValueError(f"{NOT_CONVEX}.")
        if bool(self.is_regular):
            return
        ridge = 8 * torch.finfo(self.gram.dtype).eps * (len(self.gram) + 8)
        if torch.linalg.cholesky_ex(self.scaled + ridge * self.identity).info != 0:
            raise ValueError(f"{NOT_CONVEX}.")

    def amplification(self, system: Tensor) -> Tensor:
        """Largest error per length of a step, where ``gram @ error = system @ step``.

        The larger one of two: in the units of codes, and in those of what codes contribute.
        """
        error = torch.cholesky_solve(system / self.norms / self.norms[:, None], self.factor)
        found = torch.maximum(_norm(error), _norm(error * self.norms / self.norms[:, None]))
        return torch.where(self.is_regular, found, self.worst).nan_to_num(self.worst, self.worst).clamp(max=self.worst)


def _norm(matrix: Tensor) -> Tensor:
    """Largest singular value by power iteration, a little too small at most."""
    vector = torch.randn(len(matrix), generator=torch.Generator().manual_seed(0)).to(matrix)
    for _ in range(_POWER_ITERATIONS):
        vector = matrix.mT @ (matrix @ (vector / vector.norm().clamp(min=torch.finfo(matrix.dtype).tiny)))
    length: Tensor = vector.norm().sqrt()
    return length


@dataclass(frozen=True)
class StepLimit:
    """The longest step, relative to the codes, after which a signal is done."""

    length: Tensor
    norms: Tensor  # of the atoms

    def allows(self, step: Tensor, codes: Tensor) -> Tensor:
        """Which signals are done, in the units of codes and in those of their contributions; atoms come last."""
        # Written so that NaN counts as done: a bad row never holds the others up.
        too_long = step.norm(dim=-1) > self.length * codes.norm(dim=-1)
        part_too_long = (step * self.norms).norm(dim=-1) > self.length * (codes * self.norms).norm(dim=-1)
        done: Tensor = ~(too_long | part_too_long)
        return done


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
