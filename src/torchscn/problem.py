r"""The problem, written once.

For a signal ``x``, a dictionary ``D`` whose rows are atoms, and a code ``a``:

.. math::  F(a) = \tfrac12 \|x - a D\|^2 + \sum_j \lambda_{1,j} a_j + \tfrac{\lambda_2}{2} \|a\|^2, \qquad a \ge 0

Its *normal form* is all a solver needs: ``rhs = x D' - lam1`` (one row per signal) and ``gram = D D' + lam2 I``, with
``F(a) = a G a' / 2 - rhs a' + constant``.
"""

import torch
from torch import Tensor

__all__ = ["gradient", "gram_matrix", "kkt_residual", "normal_form", "normal_kkt_residual", "objective"]


def objective(
    x: Tensor, dictionary: Tensor, codes: Tensor, lam1: float | Tensor = 0.0, lam2: float | Tensor = 0.0
) -> Tensor:
    """Value of the objective for every signal.

    Args:
        x: signals ``(..., n_features)``.
        dictionary: atoms as rows ``(n_atoms, n_features)``.
        codes: ``(..., n_atoms)``.
        lam1: weight of the sum of the codes, a number or one per atom.
        lam2: weight of half the squared norm of the codes.

    Returns:
        Tensor of shape ``(...)``.

    Example:
        >>> objective(torch.tensor([3.0, 4.0]), torch.eye(2), torch.tensor([3.0, 3.0]), lam1=0.5)
        tensor(3.5000)
    """
    misfit = (x - codes @ dictionary).square().sum(-1)
    return misfit / 2 + (lam1 * codes).sum(-1) + lam2 * codes.square().sum(-1) / 2


def gradient(
    x: Tensor, dictionary: Tensor, codes: Tensor, lam1: float | Tensor = 0.0, lam2: float | Tensor = 0.0
) -> Tensor:
    """Gradient of :func:`objective` in the codes, ``(..., n_atoms)``; arguments as there.

    Example:
        >>> gradient(torch.tensor([3.0, 4.0]), torch.eye(2), torch.tensor([3.0, 3.0]), lam1=0.5)
        tensor([ 0.5000, -0.5000])
    """
    return (codes @ dictionary - x) @ dictionary.mT + lam1 + lam2 * codes


def kkt_residual(
    x: Tensor, dictionary: Tensor, codes: Tensor, lam1: float | Tensor = 0.0, lam2: float | Tensor = 0.0
) -> Tensor:
    r"""Distance from optimality, :math:`\max_j |\min(a_j, \partial F / \partial a_j)|`, for every signal.

    Zero exactly at the optimum: there every positive code has zero gradient and every zero code a non-negative one.
    Arguments as for :func:`objective`.

    Returns:
        Tensor of shape ``(...)``; NaN where the signal or its code is not finite.

    Example:
        >>> kkt_residual(torch.tensor([3.0, 4.0]), torch.eye(2), torch.tensor([2.5, 3.5]), lam1=0.5)
        tensor(0.)
    """
    return _complementarity(codes, gradient(x, dictionary, codes, lam1, lam2))


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


def normal_kkt_residual(rhs: Tensor, gram: Tensor, codes: Tensor) -> Tensor:
    """:func:`kkt_residual` computed from the normal form.

    Example:
        >>> normal_kkt_residual(torch.tensor([2.5, -1.0]), torch.eye(2), torch.tensor([2.0, 0.0]))
        tensor(0.5000)
    """
    return _complementarity(codes, codes @ gram - rhs)


def _complementarity(codes: Tensor, grad: Tensor) -> Tensor:
    return torch.minimum(codes, grad).abs().amax(-1)
