r"""The gradient rules: how codes are differentiated, apart from how they are solved for.

``implicit`` differentiates the optimality conditions. On the support S of a code (the entries that can move) the
solution is linear, ``a_S = G_SS^{-1} rhs_S``, so with ``gamma_S = G_SS^{-1} g_S`` (zero elsewhere) for an incoming
gradient ``g``:

    grad_rhs = gamma,    grad_G = -gamma' a

That is the problem itself again, on a fixed support: one operator serves both, its backward calls itself, and the
second derivative comes for free. Only the codes are kept, whatever the number of iterations. In eager code the operator
is an autograd function, so that nothing of torch's compiler is imported; compilers and exporters see it as the
registered operator ``torchscn::solve``, one node.

``unrolled`` lets autograd record every FISTA step.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchscn.checks import Registry
from torchscn.options import Options
from torchscn.problem import CONSTRAINTS, Constraint, OnSupport, Problem
from torchscn.solvers import SOLVERS

__all__ = ["GRADIENT_RULES", "GradientRule", "check_names", "implicit", "unrolled"]

GradientRule = Callable[[Problem, Options], Tensor]
"""Codes ``(n_signals, n_atoms)`` of a problem, differentiable in its tensors."""

GRADIENT_RULES: Registry[GradientRule] = Registry("grad")

_BACKWARD_TOL = 1e-6  # of the backward system when the forward ran a fixed number of steps
# Its tolerance otherwise, relative to the forward one: the support found by the forward solve limits the gradient more
# than the accuracy of this system does (docs/speed.md has the numbers).
_LOOSER = 5.0


def check_names(options: Options) -> None:
    """The solver and the gradient rule exist and go together."""
    SOLVERS[options.solver]
    rule = GRADIENT_RULES[options.grad]
    if rule is unrolled:
        _check_unrolled(options)


@GRADIENT_RULES.register("implicit")
def implicit(problem: Problem, options: Options) -> Tensor:
    """Codes, differentiable in ``rhs``, ``gram`` and ``shift`` through the optimality conditions.

    The gradient solves its linear system with the same solver to five times ``tol``; ``max_iter`` caps the forward
    solve only.
    """
    if _is_traced(problem.rhs):
        return _call_operator(problem, options)
    if not _is_differentiated(problem):
        return SOLVERS[options.solver](problem, options).codes
    constraint = problem.constraint
    codes: Tensor = _Solve.apply(  # type: ignore[no-untyped-call]
        problem.rhs, problem.gram, problem.shift, problem.init, options, constraint.kind, *constraint.tensors()
    )
    return codes


@GRADIENT_RULES.register("unrolled")
def unrolled(problem: Problem, options: Options) -> Tensor:
    """Codes by FISTA, every step recorded by autograd: memory grows with the number of steps."""
    _check_unrolled(options)
    return SOLVERS["fista"](problem, options).codes


def _check_unrolled(options: Options) -> None:
    if options.solver != "fista":
        raise ValueError(
            f"grad='unrolled' differentiates FISTA's steps: use solver='fista' with it, not {options.solver!r}."
        )


def _is_traced(rhs: Tensor) -> bool:
    """Whether a compiler or exporter is looking on: it must see one operator, and none of what that does."""
    return (
        torch.compiler.is_compiling()
        or type(rhs) not in (Tensor, torch.nn.Parameter)
        or torch._C._len_torch_dispatch_stack() > 0
    )


def _is_differentiated(problem: Problem) -> bool:
    """Whether anybody will ask for a derivative: recording one costs more than solving a small problem."""
    tensors = (problem.rhs, problem.gram, problem.shift, *problem.constraint.tensors())
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        return True
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


class _Solve(torch.autograd.Function):
    """The operator in eager code."""

    @staticmethod
    def forward(
        ctx: Any,
        rhs: Tensor,
        gram: Tensor,
        shift: Tensor | None,
        init: Tensor | None,
        options: Options,
        kind: str,
        *bounds: Tensor,
    ) -> Tensor:
        constraint = CONSTRAINTS[kind](*bounds)
        codes = SOLVERS[options.solver](Problem(rhs, gram, shift, init, constraint), options).codes
        ctx.options = options
        _keep(ctx, gram, shift, constraint, codes)
        return codes

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, grad, implicit) + (None,) * (len(ctx.needs_input_grad) - 3)


def _keep(ctx: Any, gram: Tensor, shift: Tensor | None, constraint: Constraint, codes: Tensor) -> None:
    """What the backward needs: the Gram matrix, the codes, and which of them can move."""
    ctx.has_shift = shift is not None
    ctx.save_for_backward(gram, codes, constraint.movable(codes))


def _backward(ctx: Any, grad: Tensor, solve: GradientRule) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients in ``rhs``, ``gram`` and ``shift``: the problem itself, on the support."""
    gram, codes, support = ctx.saved_tensors
    gamma = solve(Problem(grad, gram, constraint=OnSupport(support)), _backward_options(ctx.options))
    grad_gram = -(gamma.mT @ codes) if ctx.needs_input_grad[1] else None
    grad_shift = -gamma.sum(0) if ctx.has_shift and ctx.needs_input_grad[2] else None
    return gamma, grad_gram, grad_shift


def _backward_options(options: Options) -> Options:
    # A tol of 0 without max_iter means rounding level, which the solver knows.
    tol = _BACKWARD_TOL if options.has_fixed_steps else _LOOSER * options.tol
    return replace(options, tol=tol, max_iter=None)


@torch.library.custom_op("torchscn::solve", mutates_args=())
def _operator(
    rhs: Tensor,
    gram: Tensor,
    shift: Tensor | None,
    init: Tensor | None,
    kind: str,
    bounds: Sequence[Tensor],
    solver: str,
    tol: float,
    max_iter: int | None,
    stop: str,
) -> Tensor:
    problem = Problem(rhs, gram, shift, init, CONSTRAINTS[kind](*bounds))
    return SOLVERS[solver](problem, Options(solver, tol, max_iter, stop=stop)).codes


@_operator.register_fake
def _(rhs: Tensor, *_: Any) -> Tensor:
    return rhs.new_empty(rhs.shape)


def _call_operator(problem: Problem, options: Options) -> Tensor:
    """The registered operator, whose schema takes no objects."""
    constraint = problem.constraint
    codes: Tensor = _operator(
        *(problem.rhs, problem.gram, problem.shift, problem.init, constraint.kind, list(constraint.tensors())),
        *(options.solver, options.tol, options.max_iter, options.stop),
    )
    return codes


def _operator_setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, gram, shift, _, kind, bounds, solver, tol, max_iter, stop = inputs
    ctx.options = Options(solver, tol, max_iter, stop=stop)
    _keep(ctx, gram, shift, CONSTRAINTS[kind](*bounds), output)


def _operator_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    n_bounds = len(ctx.needs_input_grad[5])
    return *_backward(ctx, grad, _call_operator), None, None, [None] * n_bounds, None, None, None, None


_operator.register_autograd(_operator_backward, setup_context=_operator_setup_context)
