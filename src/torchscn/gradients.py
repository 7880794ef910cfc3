r"""The gradient rules: how codes are differentiated, independent of how they are solved for.

``implicit`` differentiates the optimality conditions. On the support S of a code (the entries that can move) the
solution is linear, ``a_S = G_SS^{-1} rhs_S``, so with ``gamma_S = G_SS^{-1} g_S`` (zero elsewhere) for an incoming
gradient ``g``:

    grad_rhs = gamma,    grad_G = -gamma' a

(constraints add to this what their bounds and sums mean, see :mod:`torchscn.constraints`). That is the problem itself
again, on a fixed support: one operator serves both, its backward calls itself, and the
second derivative comes for free. Only the codes are kept, whatever the number of iterations. In eager code the operator
is an autograd function, so that torch's compiler is not imported; compilers and exporters see it as the
registered operator ``torchscn::solve``, one node.

``unrolled`` lets autograd record every FISTA step.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchscn.checks import Registry
from torchscn.constraints import CONSTRAINTS, OnSupport, SolveOnSupport, row_products
from torchscn.options import Options
from torchscn.problem import Problem
from torchscn.solvers import SOLVERS
from torchscn.tensors import is_transformed

__all__ = ["GRADIENT_RULES", "GradientRule", "check_names", "implicit", "unrolled"]

GradientRule = Callable[[Problem, Options], Tensor]
"""Codes ``(n_signals, n_atoms)`` of a problem, differentiable in ``rhs``, ``gram``, ``shift`` and the constraint."""

GRADIENT_RULES: Registry[GradientRule] = Registry("grad")

_BACKWARD_TOL = 1e-6  # of the backward system when the forward ran a fixed number of steps
_TAKE_OWN_MATRICES = ("auto", "active_set", "coordinate")  # solvers for which every signal may have a matrix of its own
# Its tolerance otherwise, relative to the forward one: the support found by the forward solve limits the gradient more
# than the accuracy of this system does (docs/speed.md has the numbers).
_LOOSER = 5.0
_MOST_BOUNDS = 3  # tensors of a constraint


def check_names(options: Options) -> None:
    """Check that the solver and the gradient rule exist and can be combined."""
    SOLVERS[options.solver]
    rule = GRADIENT_RULES[options.grad]
    if rule is unrolled:
        _check_unrolled(options)


@GRADIENT_RULES.register("implicit")
def implicit(problem: Problem, options: Options) -> Tensor:
    """Codes, differentiable in ``rhs``, ``gram``, ``shift`` and the constraint through the optimality conditions.

    The gradient solves its linear system with the same solver to five times ``tol``; ``max_iter`` caps the forward
    solve only.
    """
    if _is_traced(problem.rhs):
        return _call_operator(problem, options)
    if not _is_differentiated(problem):
        return SOLVERS[options.solver](problem, options).codes
    function = _SolveTransformed if is_transformed() else _Solve
    codes: Tensor = function.apply(  # type: ignore[no-untyped-call]
        *(problem.rhs, problem.gram, problem.shift, problem.init),
        *(options, problem.constraint.kind, *problem.constraint.tensors()),
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
    """Whether a compiler or exporter is tracing: it must see one operator and nothing inside it."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        or rhs.is_meta
        or type(rhs) not in (Tensor, torch.nn.Parameter)
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.is_legacy_batchedtensor(rhs)  # of torch.autograd.grad(..., is_grads_batched=True)
    )


def _is_differentiated(problem: Problem) -> bool:
    """Whether a derivative may be needed: recording one costs more than solving a small problem."""
    tensors = (problem.rhs, problem.gram, problem.shift, *problem.constraint.tensors())
    asked = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    return asked or is_transformed()


class _Solve(torch.autograd.Function):
    """The operator in eager code, for ordinary autograd."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        codes = _solve(*inputs)
        _keep(ctx, inputs, codes)
        return codes

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_problem, of_constraint = _backward(ctx, grad, implicit)
        return (*of_problem, None, None, None, *of_constraint)


class _SolveTransformed(torch.autograd.Function):
    """The same for forward-mode differentiation and the transforms of ``torch.func``, which cost more per call."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return _solve(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _keep(ctx, inputs, output)
        ctx.save_for_forward(*ctx.to_save)

    backward = _Solve.backward

    @staticmethod
    def jvp(ctx: Any, rhs: Tensor | None, gram: Tensor | None, shift: Tensor | None, *others: Any) -> Tensor:
        """The tangent solves the same system as the gradient: ``G_SS da_S = (d rhs - d shift - a dG)_S``."""
        _refuse_nested_forward_mode()
        own_gram, codes, *bounds = ctx.saved_tensors
        change = torch.zeros_like(codes) if rhs is None else rhs
        change = change if shift is None else change - shift
        change = change if gram is None else change - row_products(codes, gram)
        constraint, solve = CONSTRAINTS[ctx.kind](*bounds), _on_support(ctx, implicit)
        return constraint.tangent(solve, change, own_gram, codes, others[3:])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        """More signals, or more Gram matrices, are one larger problem; anything else is solved one by one."""
        inputs = tuple(
            value if dim is None else value.movedim(dim, 0) for value, dim in zip(inputs, in_dims, strict=True)
        )
        if in_dims[2] is not None:
            # A shift for each entry of the batch goes into the right-hand side.
            rhs, _, shift = inputs[:3]
            inputs = ((rhs if in_dims[0] is not None else rhs[None]) - shift[:, None, :], inputs[1], None, *inputs[3:])
            in_dims = (0, in_dims[1], None, *in_dims[3:])
        solve = _SolveTransformed.apply
        takes_own = in_dims[1] is None or inputs[4].solver in _TAKE_OWN_MATRICES
        if takes_own:
            rows, n_signals = list(inputs), inputs[0].shape[0 if in_dims[0] is None else 1]
            rows[1] = _fold_matrices(inputs[1], in_dims[1] is not None, info.batch_size, n_signals)
            for i in (0, 3):
                rows[i] = _fold(inputs[i], in_dims[i] is not None, info.batch_size)
            for i in range(6, len(inputs)):
                rows[i] = _fold_bound(inputs[i], in_dims[i] is not None, info.batch_size, n_signals)
            codes = solve(*rows)  # type: ignore[no-untyped-call]
            return codes.unflatten(0, (info.batch_size, n_signals)), 0
        one_by_one = [
            solve(*(value if dim is None else value[i] for value, dim in zip(inputs, in_dims, strict=True)))  # type: ignore[no-untyped-call]
            for i in range(info.batch_size)
        ]
        return torch.stack(one_by_one), 0


def _refuse_nested_forward_mode() -> None:
    """torch loses the second tangent of custom functions without a word."""
    levels = [level.key() for level in torch._C._functorch.get_interpreter_stack() or ()]
    if levels.count(torch._C._functorch.TransformType.Jvp) > 1:
        raise RuntimeError(
            "forward-mode derivatives of forward-mode derivatives are not supported; use reverse mode for one of the "
            "two, as torch.func.hessian does."
        )


def _fold(value: Tensor | None, is_batched: bool, batch_size: int) -> Tensor | None:
    """The rows of every entry of a batch one after the other."""
    if value is None:
        return None
    return (value if is_batched else value.expand(batch_size, *value.shape)).flatten(0, 1)


def _fold_bound(bound: Tensor, is_batched: bool, batch_size: int, n_signals: int) -> Tensor:
    """A tensor of a constraint for all rows of a folded batch; one per atom, the same for all, stays as it is."""
    if not is_batched:
        return bound if bound.dim() == 1 else bound.repeat(batch_size, 1)
    return (bound if bound.dim() == 3 else bound[:, None].expand(-1, n_signals, -1)).flatten(0, 1)


def _fold_matrices(gram: Tensor, is_batched: bool, batch_size: int, n_signals: int) -> Tensor:
    """The matrix for all rows of a folded batch, or, where there are several, one for every row."""
    if not is_batched:
        return gram if gram.dim() == 2 else gram.repeat(batch_size, 1, 1)
    return (gram if gram.dim() == 4 else gram[:, None].expand(-1, n_signals, -1, -1)).flatten(0, 1)


def _solve(
    rhs: Tensor, gram: Tensor, shift: Tensor | None, init: Tensor | None, options: Options, kind: str, *bounds: Tensor
) -> Tensor:
    problem = Problem(rhs, gram, shift, init, CONSTRAINTS[kind](*bounds))
    return SOLVERS[options.solver](problem, options).codes


def _keep(ctx: Any, inputs: tuple[Any, ...], codes: Tensor) -> None:
    """What the derivatives need: the Gram matrix, the codes and the constraint."""
    _, gram, shift, _, ctx.options, ctx.kind, *bounds = inputs
    ctx.has_shift, ctx.first_bound = shift is not None, 6
    ctx.save_for_backward(gram, codes, *bounds)


def _on_support(ctx: Any, solve: GradientRule) -> SolveOnSupport:
    """The linear system of a derivative: the problem itself, on the entries of the codes that can move."""

    def solve_on_support(rhs: Tensor, gram: Tensor, support: Tensor) -> Tensor:
        return solve(Problem(rhs, gram, constraint=OnSupport(support)), _backward_options(ctx.options))

    return solve_on_support


def _backward(
    ctx: Any, grad: Tensor, solve: GradientRule
) -> tuple[tuple[Tensor | None, Tensor | None, Tensor | None], list[Tensor | None]]:
    """Gradients in ``rhs``, ``gram`` and ``shift``, and in the tensors of the constraint."""
    gram, codes, *bounds = ctx.saved_tensors
    wanted = ctx.needs_input_grad[ctx.first_bound :][: len(bounds)]
    constraint, on_support = CONSTRAINTS[ctx.kind](*bounds), _on_support(ctx, solve)
    gamma, of_bounds = constraint.backward(on_support, grad, gram, codes, any(wanted))
    grad_gram = -_outer_products(gamma, codes, own=gram.dim() == 3) if ctx.needs_input_grad[1] else None
    grad_shift = -gamma.sum(0) if ctx.has_shift and ctx.needs_input_grad[2] else None
    of_constraint = [
        None if own is None else own.sum(0) if bound.dim() == 1 else own
        for own, bound in zip(of_bounds, bounds, strict=True)
    ]
    return (gamma, grad_gram, grad_shift), of_constraint


def _outer_products(rows: Tensor, codes: Tensor, own: bool) -> Tensor:
    """The outer products of every row with its codes, or, for a matrix that all share, their sum."""
    return rows[:, :, None] * codes[:, None, :] if own else rows.mT @ codes


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
    first: Tensor | None,
    second: Tensor | None,
    third: Tensor | None,
    solver: str,
    tol: float,
    max_iter: int | None,
    stop: str,
) -> Tensor:
    # The tensors of the constraint are optional, not a list, for which torch has no rule when gradients are batched.
    bounds = (tensor for tensor in (first, second, third) if tensor is not None)
    return _solve(rhs, gram, shift, init, Options(solver, tol, max_iter, stop=stop), kind, *bounds)


@_operator.register_fake
def _(rhs: Tensor, *_: Any) -> Tensor:
    return rhs.new_empty(rhs.shape)


def _call_operator(problem: Problem, options: Options) -> Tensor:
    """The registered operator, whose schema takes no objects."""
    tensors = problem.constraint.tensors()
    if len(tensors) > _MOST_BOUNDS:
        raise TypeError(f"operators take constraints of at most three tensors; {problem.constraint.kind!r} has more.")
    codes: Tensor = _operator(
        *(problem.rhs, problem.gram, problem.shift, problem.init, problem.constraint.kind),
        *(*tensors, *[None] * _MOST_BOUNDS)[:_MOST_BOUNDS],
        *(options.solver, options.tol, options.max_iter, options.stop),
    )
    return codes


def _operator_setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, gram, shift, _, kind, *bounds, solver, tol, max_iter, stop = inputs
    options = Options(solver, tol, max_iter, stop=stop)
    bounds = [tensor for tensor in bounds if tensor is not None]
    _keep(ctx, (None, gram, shift, None, options, kind, *bounds), output)
    ctx.first_bound = 5


def _operator_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    of_problem, of_constraint = _backward(ctx, grad, _call_operator)
    return (*of_problem, None, None, *(*of_constraint, *[None] * _MOST_BOUNDS)[:_MOST_BOUNDS], None, None, None, None)


_operator.register_autograd(_operator_backward, setup_context=_operator_setup_context)
