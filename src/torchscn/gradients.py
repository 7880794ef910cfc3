r"""The gradient rules: how codes are differentiated, apart from how they are solved for.

``implicit`` differentiates the optimality conditions. On the support S of a code the solution is linear,
``a_S = G_SS^{-1} rhs_S``, so with ``gamma_S = G_SS^{-1} g_S`` (zero elsewhere) for an incoming gradient ``g``:

    grad_rhs = gamma,    grad_G = -gamma' a

Only the codes are kept for it, whatever the number of iterations. Both the solve and its backward twin are registered
as operators, so compilers and exporters see one node, and each has the other's formula for its own gradient, so the
second derivative works too.

``unrolled`` lets autograd record every FISTA step.
"""

from typing import Any

import torch
from torch import Tensor

from torchscn.solvers import QuadraticProgram, get_solver
from torchscn.solvers.fista import fista

__all__ = ["GRADIENT_RULES", "implicit", "unrolled"]

GRADIENT_RULES = ("implicit", "unrolled")

_BACKWARD_TOL = 1e-6  # of the backward system when the forward ran a fixed number of steps
# Its tolerance otherwise, relative to the forward one: the support found by the forward solve limits the gradient more
# than the accuracy of this system does (docs/speed.md has the numbers).
_LOOSER = 5.0


def implicit(
    rhs: Tensor,
    gram: Tensor,
    shift: Tensor | None,
    init: Tensor | None,
    solver: str,
    tol: float,
    max_iter: int | None,
    as_block: bool,
) -> Tensor:
    """Codes ``(n_signals, n_atoms)`` of the normal form, differentiable in ``rhs``, ``gram`` and ``shift``.

    The gradient solves its linear system with the same solver to five times ``tol``; ``max_iter`` caps the forward
    solve only. With ``as_block``, neighbouring signals may be judged together, by the error that is left.
    """
    codes: Tensor = _nonneg_qp(rhs, gram, shift, init, solver, tol, max_iter, as_block)
    return codes


def unrolled(
    rhs: Tensor, gram: Tensor, shift: Tensor | None, init: Tensor | None, tol: float, max_iter: int | None
) -> Tensor:
    """Codes by FISTA, every step recorded by autograd: memory grows with the number of steps."""
    return fista(QuadraticProgram(rhs, gram, shift, init), tol, max_iter).codes


@torch.library.custom_op("torchscn::nonneg_qp", mutates_args=())
def _nonneg_qp(
    rhs: Tensor,
    gram: Tensor,
    shift: Tensor | None,
    init: Tensor | None,
    solver: str,
    tol: float,
    max_iter: int | None,
    as_block: bool,
) -> Tensor:
    problem = QuadraticProgram(rhs, gram, shift, init, as_block=as_block)
    return get_solver(solver)(problem, tol, max_iter).codes


@torch.library.custom_op("torchscn::support_solve", mutates_args=())
def _support_solve(grad: Tensor, gram: Tensor, codes: Tensor, solver: str, tol: float, as_block: bool) -> Tensor:
    problem = QuadraticProgram(grad, gram, support=codes, as_block=as_block)
    return get_solver(solver)(problem, tol, None).codes


@_nonneg_qp.register_fake
def _(
    rhs: Tensor,
    gram: Tensor,
    shift: Tensor | None,
    init: Tensor | None,
    solver: str,
    tol: float,
    max_iter: int | None,
    as_block: bool,
) -> Tensor:
    return rhs.new_empty(rhs.shape)


@_support_solve.register_fake
def _(grad: Tensor, gram: Tensor, codes: Tensor, solver: str, tol: float, as_block: bool) -> Tensor:
    return grad.new_empty(grad.shape)


def _keep_for_nonneg_qp(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, gram, shift, _, ctx.solver, tol, max_iter, ctx.as_block = inputs
    # A tol of 0 is a fixed number of steps with max_iter, and rounding level (which the solver knows) without.
    ctx.tol = _BACKWARD_TOL if tol == 0 and max_iter is not None else _LOOSER * tol
    ctx.has_shift = shift is not None
    ctx.save_for_backward(gram, output)


def _nonneg_qp_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gram, codes = ctx.saved_tensors
    gamma = _support_solve(grad, gram, codes, ctx.solver, ctx.tol, ctx.as_block)
    grad_gram = -(gamma.mT @ codes) if ctx.needs_input_grad[1] else None
    grad_shift = -gamma.sum(0) if ctx.has_shift and ctx.needs_input_grad[2] else None
    return gamma, grad_gram, grad_shift, None, None, None, None, None


def _keep_for_support_solve(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, gram, codes, ctx.solver, ctx.tol, ctx.as_block = inputs
    ctx.save_for_backward(gram, codes, output)


def _support_solve_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gram, codes, gamma = ctx.saved_tensors
    delta = _support_solve(grad, gram, codes, ctx.solver, ctx.tol, ctx.as_block)
    grad_gram = -(delta.mT @ gamma) if ctx.needs_input_grad[1] else None
    return delta, grad_gram, None, None, None, None


_nonneg_qp.register_autograd(_nonneg_qp_backward, setup_context=_keep_for_nonneg_qp)
_support_solve.register_autograd(_support_solve_backward, setup_context=_keep_for_support_solve)
