"""What every solver shares: the problem it sees, the result it returns, the loop, and the registry."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["QuadraticProgram", "Result", "Solution", "Solver", "iterate", "poison_rows", "register", "registry"]


@dataclass(frozen=True)
class QuadraticProgram:
    """A batch of problems in normal form: minimise ``a G a' / 2 - (rhs - shift) a'`` for every row of ``rhs``.

    Codes are non-negative, or, where ``support`` is given, free where it is positive and zero elsewhere: the first is
    the forward problem, the second its backward twin, and every solver does both.
    """

    rhs: Tensor  # (n_signals, n_atoms)
    gram: Tensor  # (n_atoms, n_atoms), symmetric, positive semi-definite
    shift: Tensor | None = None  # (n_atoms,), subtracted from every row
    init: Tensor | None = None  # (n_signals, n_atoms), codes to start from
    support: Tensor | None = None  # (n_signals, n_atoms)
    as_block: bool = False  # neighbouring signals may be judged together, by the error that is left (compiled kernel)

    def linear(self) -> Tensor:
        """The right-hand side with the shift subtracted."""
        return self.rhs if self.shift is None else self.rhs - self.shift

    def project(self, codes: Tensor) -> Tensor:
        """The nearest codes that are allowed."""
        return codes.relu() if self.support is None else codes * (self.support > 0)

    def ridge(self) -> float:
        """Relative addition to the diagonal: rounding level, and only where the system may be singular.

        The backward problem is a linear system, which has no finite solution when atoms on the support are linearly
        dependent; this picks one.
        """
        return 0.0 if self.support is None else 16 * torch.finfo(self.rhs.dtype).eps

    def start(self) -> Tensor | None:
        """Allowed, finite codes to start from; atoms without energy keep the code 0."""
        if self.init is None:
            return None
        return self.project(self.init.nan_to_num(0, 0, 0)) * (self.gram.diagonal() > 0)

    def take(self, rows: Tensor, init: Tensor | None = None) -> "QuadraticProgram":
        """The problems of the chosen rows, started from ``init``."""
        support = None if self.support is None else self.support[rows]
        return QuadraticProgram(self.rhs[rows], self.gram, self.shift, init, support, self.as_block)


class Result(NamedTuple):
    """What a solver returns."""

    codes: Tensor  # (n_signals, n_atoms)
    converged: Tensor  # (n_signals,)
    n_iter: int  # the most any signal needed
    mean_iter: float  # the mean over signals


@dataclass(frozen=True)
class Solution:
    """Codes with their certificate, as returned by :func:`torchscn.solve` and ``layer.solve``."""

    codes: Tensor
    """The codes, ``(..., n_atoms)`` (layers over positions keep atoms where channels stand)."""
    residual: Tensor
    """Distance from optimality of every signal, :func:`torchscn.kkt_residual`."""
    converged: Tensor
    """Whether each signal met the tolerance within ``max_iter``; False for signals that are not finite."""
    n_iter: int
    """The most iterations any signal needed."""
    mean_iter: float
    """Iterations, averaged over signals."""


Solver = Callable[[QuadraticProgram, float, int | None], Result]
"""Solves a problem to a relative accuracy ``tol`` within ``max_iter`` iterations (None: the solver's own cap)."""

registry: dict[str, Solver] = {}


def register(name: str) -> Callable[[Solver], Solver]:
    """Make a solver usable as ``solver=name``."""

    def add(solver: Solver) -> Solver:
        registry[name] = solver
        return solver

    return add


def effective_tol(tol: float, gram: Tensor, max_iter: int | None) -> float:
    """``tol`` raised to what the number type can show; exactly 0 with a ``max_iter`` means a fixed number of steps."""
    if tol == 0 and max_iter is not None:
        return 0.0
    return max(tol, torch.finfo(gram.dtype).eps * max(4.0, math.sqrt(len(gram)) / 2))


def iterate(
    step: Callable[[Tensor], tuple[Tensor, Tensor]], codes: Tensor, tol: float, max_iter: int
) -> tuple[Tensor, Tensor, int]:
    """Apply ``step`` until no code of any signal changes by more than ``tol`` times its largest code.

    Args:
        step: codes to the next codes and the largest change of every signal.
        codes: ``(n_signals, n_atoms)`` to start from.
        tol: relative accuracy; 0 runs ``max_iter`` steps.
        max_iter: cap on the steps.

    Returns:
        codes, converged ``(n_signals,)``, steps taken.
    """
    # On other devices reading the stopping test waits for the device, so it is read rarely.
    check_every = 1 if codes.device.type == "cpu" else 10
    done = torch.zeros(codes.shape[:-1], dtype=torch.bool, device=codes.device)
    n_iter = 0
    while n_iter < max_iter:
        codes, change = step(codes)
        n_iter += 1
        if tol > 0 and (n_iter % check_every == 0 or n_iter == max_iter):
            # Written so that NaN counts as done: a bad row never holds the others up.
            done = ~(change > tol * codes.detach().abs().amax(-1))
            if done.all():
                break
    return codes, done, n_iter


def poison_rows(problem: QuadraticProgram, codes: Tensor, converged: Tensor) -> tuple[Tensor, Tensor]:
    """NaN codes and ``converged=False`` for every signal whose problem or code is not finite."""
    finite = torch.isfinite(problem.rhs).all(-1) & torch.isfinite(codes).all(-1)
    finite = finite & torch.isfinite(problem.gram).all()
    if problem.shift is not None:
        finite = finite & torch.isfinite(problem.shift).all()
    return torch.where(finite[..., None], codes, torch.nan), converged & finite
