r"""The problem, defined once.

For a signal ``x``, a dictionary ``D`` whose rows are atoms, and a code ``a``:

.. math::  F(a) = \tfrac12 \|x - a D\|^2 + \sum_j \lambda_{1,j} |a_j| + \tfrac{\lambda_2}{2} \|a\|^2, \qquad a \in C

C is a constraint (:mod:`torchscn.constraints`), no code below zero unless another one is chosen. The *normal form* of
the problem is all a solver needs: ``rhs = x D' - lam1`` (one row per signal) and ``gram = D D' + lam2 I``, with
``F(a) = a G a' / 2 - rhs a' + constant``. :class:`Problem` is a batch of them, :class:`Result` what a solver
returns, and :class:`Solution` what a user sees.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, SupportsFloat, SupportsInt

import torch
from torch import Tensor

from torchscn.constraints import Constraint, NonNegative, OnSupport, as_constraint, row_products
from torchscn.tensors import as_rows

__all__ = [
    "Affine",
    "Problem",
    "Result",
    "Solution",
    "gradient",
    "gram_matrix",
    "kkt_residual",
    "normal_form",
    "objective",
    "power_of_two",
]


def objective(
    x: Tensor, dictionary: Tensor, codes: Tensor, lam1: float | Tensor = 0.0, lam2: float | Tensor = 0.0
) -> Tensor:
    """Value of the objective for every signal.

    Args:
        x: signals ``(..., n_features)``.
        dictionary: atoms as rows ``(n_atoms, n_features)``.
        codes: ``(..., n_atoms)``.
        lam1: weight of the sum of the codes' sizes, a number, one per atom, or ``(..., 1)`` for one per signal.
        lam2: weight of half the squared norm of the codes.

    Returns:
        Tensor of shape ``(...)``.

    Example:
        >>> objective(torch.tensor([3.0, 4.0]), torch.eye(2), torch.tensor([3.0, 3.0]), lam1=0.5)
        tensor(3.5000)
    """
    misfit = (x - _times(codes, dictionary)).square().sum(-1)
    return misfit / 2 + (lam1 * codes.abs()).sum(-1) + lam2 * codes.square().sum(-1) / 2


def _times(rows: Tensor, matrix: Tensor) -> Tensor:
    """Rows times the matrix for all, or, in a batch of matrices, for one row each or several each."""
    one_each = 2 < matrix.dim() > rows.dim()
    return (rows[..., None, :] @ matrix).squeeze(-2) if one_each else rows @ matrix


def gradient(
    x: Tensor, dictionary: Tensor, codes: Tensor, lam1: float | Tensor = 0.0, lam2: float | Tensor = 0.0
) -> Tensor:
    """Gradient of :func:`objective` in codes of at least zero, ``(..., n_atoms)``; arguments as there.

    Example:
        >>> gradient(torch.tensor([3.0, 4.0]), torch.eye(2), torch.tensor([3.0, 3.0]), lam1=0.5)
        tensor([ 0.5000, -0.5000])
    """
    return _times(_times(codes, dictionary) - x, dictionary.mT) + lam1 + lam2 * codes


def kkt_residual(
    x: Tensor,
    dictionary: Tensor,
    codes: Tensor,
    lam1: float | Tensor = 0.0,
    lam2: float | Tensor = 0.0,
    *,
    constraint: str | Constraint = "non_negative",
) -> Tensor:
    r"""Distance from optimality for every signal: how far a gradient step of length 1 would move any code.

    Zero exactly at the optimum. For codes of at least zero that is :math:`\max_j |\min(a_j, \partial F / \partial
    a_j)|`: at the optimum every positive code has zero gradient and every zero code a non-negative one. Arguments as
    for :func:`objective`, and the constraint as for :func:`torchscn.sparse_code`.

    Returns:
        Tensor of shape ``(...)``; NaN where the signal or its code is not finite.

    Example:
        >>> kkt_residual(torch.tensor([3.0, 4.0]), torch.eye(2), torch.tensor([2.5, 3.5]), lam1=0.5)
        tensor(0.)
        >>> kkt_residual(torch.tensor([-3.0, 4.0]), torch.eye(2), torch.tensor([-2.5, 3.5]), 0.5, constraint="signed")
        tensor(0.)
    """
    fitted = as_constraint(constraint).fit(codes, dictionary)
    with_penalty = fitted.penalised(lam1, codes, dictionary)
    grad = gradient(x, dictionary, codes, lam1 if with_penalty is None else 0.0, lam2)
    residual = (with_penalty or fitted).residual(as_rows(codes), as_rows(grad))
    return residual.abs().amax(-1).reshape(codes.shape[:-1])


def gram_matrix(dictionary: Tensor, lam2: float | Tensor = 0.0) -> Tensor:
    """``D D' + lam2 I`` for atoms as rows, whatever the shape of one atom.

    Example:
        >>> gram_matrix(torch.eye(2), lam2=0.5)
        tensor([[1.5000, 0.0000],
                [0.0000, 1.5000]])
    """
    D = dictionary.flatten(1)
    return D @ D.mT + lam2 * torch.eye(len(D), dtype=D.dtype, device=D.device)


def normal_form(
    x: Tensor, dictionary: Tensor, lam1: float | Tensor = 0.0, lam2: float | Tensor = 0.0
) -> tuple[Tensor, Tensor]:
    """``(rhs, gram)`` of the problem; arguments as for :func:`objective`.

    Example:
        >>> rhs, gram = normal_form(torch.tensor([3.0, 4.0]), torch.eye(2), lam1=0.5)
        >>> rhs
        tensor([2.5000, 3.5000])
    """
    return x @ dictionary.mT - lam1, gram_matrix(dictionary, lam2)


class Affine(NamedTuple):
    """Applied to the final codes: ``codes * scale + offset``, with one scale and offset per atom."""

    scale: Tensor
    offset: Tensor


_NON_NEGATIVE = NonNegative()
_CUT_OFF = 2.0**50  # of numbers whose square must not overflow


@dataclass(frozen=True)
class Problem:
    """A batch of problems in normal form: minimise ``a G a' / 2 - (rhs - shift) a'`` for every row of ``rhs``.

    Solvers use its methods where they can, so that other forms of the Gram matrix (one per signal, or one whose columns
    are computed on demand) can be added in one place.
    """

    rhs: Tensor  # (n_signals, n_atoms)
    gram: Tensor  # (n_atoms, n_atoms), symmetric, positive semi-definite; or one each, (n_signals, n_atoms, n_atoms)
    shift: Tensor | None = None  # (n_atoms,), subtracted from every row
    init: Tensor | None = None  # (n_signals, n_atoms), codes to start from
    constraint: Constraint = _NON_NEGATIVE
    affine: Affine | None = None  # return the codes scaled and shifted
    in_place: bool = False  # the result may be written over rhs

    def linear(self) -> Tensor:
        """The right-hand side with the shift subtracted."""
        return self.rhs if self.shift is None else self.rhs - self.shift

    def gradient(self, codes: Tensor) -> Tensor:
        """Gradient of the objective in the codes."""
        return row_products(codes, self.gram) - self.linear()

    def residual(self, codes: Tensor) -> Tensor:
        """Distance from optimality of every signal: the largest entry of the constraint's residual."""
        return self.constraint.residual(codes, self.gradient(codes)).abs().amax(-1)

    def energy(self) -> Tensor:
        """Squared norms of the atoms, ``(n_atoms,)`` or ``(n_signals, n_atoms)``."""
        return self.gram.diagonal(dim1=-2, dim2=-1)

    def has_energy(self) -> Tensor:
        """Which atoms are not zero; the others keep the code 0."""
        return self.energy() > 0

    def has_vanishing_code(self) -> Tensor:
        """Whether an atom with no energy, or with digits lost to underflow, would have a code, which has no bound."""
        energy, limits = self.gram.diagonal(), torch.finfo(self.gram.dtype)
        if isinstance(self.constraint, OnSupport):
            return torch.zeros((), dtype=torch.bool, device=energy.device)
        vanishing = (energy <= limits.tiny / limits.eps) | (energy / power_of_two(energy.amax()) <= limits.tiny)
        return ((self.constraint.pull(self.linear()) > 0).any(0) & vanishing).any()

    def start(self) -> Tensor | None:
        """Allowed, finite codes to start from; None if there are none."""
        if self.init is None:
            return None
        return self.constraint.project(self.init.nan_to_num(0, 0, 0) * self.has_energy())

    def take(self, rows: Tensor, init: Tensor | None = None) -> "Problem":
        """The problems of the chosen rows, started from ``init``; their codes are not scaled or shifted."""
        constraint, gram = self.constraint.take(rows), self.gram if self.gram.dim() == 2 else self.gram[rows]
        return replace(
            self, rhs=self.rhs[rows], gram=gram, init=init, constraint=constraint, affine=None, in_place=False
        )

    def well_scaled(self) -> tuple["Problem", Tensor]:
        """The problem with numbers around 1, and what its codes are to be times to be those of this one.

        No square of a number overflows or vanishes then. Signals that are not finite become zero. Under a constraint
        that cannot be scaled, nothing is.
        """
        linear, gram = self.linear().nan_to_num(0, 0, 0), self.gram.nan_to_num(0, 0, 0)
        energy = power_of_two(gram.detach().diagonal().amax())
        forced = self.constraint.project(torch.zeros_like(linear)).detach().abs() * self.energy().detach()
        size = power_of_two(torch.maximum(self.constraint.pull(linear.detach()), forced).amax(-1, keepdim=True))
        constraint = self.constraint.scaled(size, size / energy)
        if constraint is None:
            constraint, energy, size = self.constraint, torch.ones_like(energy), torch.ones_like(size)
        # Numbers that keep codes at a bound do so just as well when they are cut off before they overflow; starts so
        # far off are no use.
        rhs, init = (linear / size).clamp(-_CUT_OFF, _CUT_OFF), None
        if self.init is not None:
            init = self.init / size * energy
            init = torch.where(init.abs().amax(-1, keepdim=True) < _CUT_OFF, init, 0.0)
        scaled = replace(
            self,
            rhs=rhs,
            gram=gram / energy,
            shift=None,
            init=init,
            constraint=constraint,
            affine=None,
            in_place=False,
        )
        return scaled, size / energy

    def is_finite(self) -> Tensor:
        """Which signals have a finite problem, ``(n_signals,)``."""
        finite = torch.isfinite(self.rhs).all(-1) & torch.isfinite(self.gram).all((-2, -1))
        return finite if self.shift is None else finite & torch.isfinite(self.shift).all()

    def finish(self, codes: Tensor) -> Tensor:
        """The codes, scaled and shifted if the problem asks for it."""
        return codes if self.affine is None else codes * self.affine.scale + self.affine.offset


def power_of_two(size: Tensor) -> Tensor:
    """The power of two next to every size; 1 for zero and for what is not finite."""
    power = torch.exp2(torch.frexp(size).exponent.to(size.dtype))
    return torch.where((size > 0) & torch.isfinite(power), power, 1.0)


class Result(NamedTuple):
    """What a solver returns."""

    codes: Tensor  # (n_signals, n_atoms), scaled and shifted if the problem asks for it
    converged: Tensor  # (n_signals,)
    n_iter: SupportsInt  # the most any signal needed; converting it may wait for a device
    mean_iter: SupportsFloat  # the mean over signals


@dataclass(frozen=True, repr=False)
class Solution:
    """Codes with their certificate, as returned by :func:`torchscn.solve` and ``layer.solve``."""

    codes: Tensor
    """The codes, ``(..., n_atoms)`` (in 1d and 2d layers, atoms take the place of channels)."""
    residual: Tensor
    """Distance from optimality of every signal, :func:`torchscn.kkt_residual`."""
    converged: Tensor
    """Whether each signal met the tolerance within ``max_iter``; False for signals that are not finite."""
    n_iter: int
    """The most iterations any signal needed."""
    mean_iter: float
    """Iterations, averaged over signals."""

    def __repr__(self) -> str:
        kind = str(self.codes.dtype).removeprefix("torch.")
        n_signals, n_converged = self.converged.numel(), int(self.converged.sum())
        worst = f", residual at most {self.residual.max():.1e}" if n_signals else ""
        return (
            f"Solution(codes {tuple(self.codes.shape)} {kind}, {n_converged:,} of {n_signals:,} converged{worst},\n"
            f"         iterations: {self.mean_iter:.1f} on average, {self.n_iter} at most)"
        )
