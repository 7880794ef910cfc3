"""Sparse coding as functions: validate, build the normal form, call the solver and the gradient rule."""

import contextlib
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from torchscn import checks
from torchscn.implicit import implicit, unrolled
from torchscn.objective import gram_matrix, normal_kkt_residual
from torchscn.solvers import QuadraticProgram, Solution, get_solver
from torchscn.solvers.coordinate import coordinate_in_place

__all__ = ["nonneg_qp", "solve", "sparse_code"]


def sparse_code(
    x: Tensor,
    dictionary: Tensor,
    lam1: float | Tensor = 0.0,
    lam2: float | Tensor = 0.0,
    *,
    solver: str = "auto",
    tol: float = 1e-4,
    max_iter: int | None = None,
    grad: str = "implicit",
    init: Tensor | None = None,
) -> Tensor:
    r"""Non-negative sparse codes of ``x``, differentiable in ``x``, ``dictionary``, ``lam1`` and ``lam2``.

    Solves :math:`\min_{a \ge 0} \tfrac12 \|x - a D\|^2 + \sum_j \lambda_{1,j} a_j + \tfrac{\lambda_2}{2} \|a\|^2` for
    every signal. With both penalties 0 this is non-negative least squares.

    Args:
        x: signals ``(..., n_features)``, float32 or float64.
        dictionary: atoms as rows ``(n_atoms, n_features)``.
        lam1: l1 penalty, a number, a scalar tensor, or one per atom ``(n_atoms,)``; numbers must not be negative.
        lam2: l2 penalty, a number or a scalar tensor. Above 0 the code is unique.
        solver: one of :func:`torchscn.list_solvers`.
        tol: relative accuracy of the codes: stop when no code of a signal changes by more than ``tol`` times its
            largest code. Raised to rounding level where it is below; 0 with a ``max_iter`` runs that many iterations.
        max_iter: cap on the iterations; None is the solver's own.
        grad: ``"implicit"`` differentiates the optimality conditions, ``"unrolled"`` every step of
            ``solver="fista"``.
        init: codes to start from, shaped like the result.

    Returns:
        Codes ``(..., n_atoms)``. A signal with NaN or infinity gets NaN; the others are untouched.

    Note:
        Where atoms on the support are linearly dependent and ``lam2`` is 0, code and gradient are not unique; the
        gradient returned is the finite one of a rounding-level ridge. The gradient is that of the support found, so a
        loose ``tol`` that mistakes an entry of the support costs gradient accuracy.

    Example:
        >>> dictionary = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> sparse_code(torch.tensor([3.0, 4.0]), dictionary, lam1=0.5, tol=1e-6)
        tensor([0.0000, 0.0000, 4.5000])
    """
    checks.check_options(solver, tol, max_iter, grad)
    x, dictionary, lam1, lam2, init = _full_precision(x, dictionary, lam1, lam2, init)
    _check_dense(x, dictionary, lam1, lam2)
    with _no_autocast(x):
        rhs, gram = x @ dictionary.mT, gram_matrix(dictionary, lam2)
        return _encode(rhs, gram, _shift(lam1, rhs), init, solver, tol, max_iter, grad)


def solve(
    x: Tensor,
    dictionary: Tensor,
    lam1: float | Tensor = 0.0,
    lam2: float | Tensor = 0.0,
    *,
    solver: str = "auto",
    tol: float = 1e-4,
    max_iter: int | None = None,
    init: Tensor | None = None,
) -> Solution:
    """Sparse codes with their certificate, without a gradient; arguments as for :func:`sparse_code`.

    Returns:
        :class:`Solution` with ``codes``, ``residual``, ``converged`` and ``n_iter``.

    Example:
        >>> solution = solve(torch.tensor([[3.0, 4.0]]), torch.eye(2), lam1=0.5)
        >>> solution.codes, solution.converged
        (tensor([[2.5000, 3.5000]]), tensor([True]))
    """
    checks.check_options(solver, tol, max_iter)
    x, dictionary, lam1, lam2, init = _full_precision(x, dictionary, lam1, lam2, init)
    _check_dense(x, dictionary, lam1, lam2)
    with torch.no_grad(), _no_autocast(x):
        rhs, gram = x @ dictionary.mT, gram_matrix(dictionary, lam2)
        return _certify(rhs, gram, _shift(lam1, rhs), init, solver, tol, max_iter)


def nonneg_qp(
    rhs: Tensor,
    gram: Tensor,
    *,
    solver: str = "auto",
    tol: float = 1e-4,
    max_iter: int | None = None,
    grad: str = "implicit",
    init: Tensor | None = None,
) -> Tensor:
    """Minimise ``a G a' / 2 - rhs a'`` over ``a >= 0`` for every row of ``rhs``: the normal form itself.

    Differentiable in ``rhs`` and ``gram``; an unsymmetric ``gram`` counts through its symmetric part, which must be
    positive semi-definite. An atom whose diagonal entry is 0 gets the code 0. Options as for :func:`sparse_code`.

    Args:
        rhs: ``(..., n_atoms)``.
        gram: ``(n_atoms, n_atoms)``, shared by all rows.

    Returns:
        Tensor with the shape of ``rhs``.

    Example:
        >>> nonneg_qp(torch.tensor([1.0, -1.0]), torch.eye(2))
        tensor([1., 0.])
    """
    checks.check_options(solver, tol, max_iter, grad)
    rhs, gram, init = _full_precision(rhs, gram, init)
    checks.check_tensor("rhs", rhs)
    checks.check_tensor("gram", gram)
    checks.check_same_kind("rhs", rhs, "gram", gram)
    n_atoms = rhs.shape[-1] if rhs.dim() else 0
    if n_atoms == 0 or tuple(gram.shape) != (n_atoms, n_atoms):
        raise ValueError(
            f"gram must be square with one row per entry of rhs's last dimension; "
            f"got gram {tuple(gram.shape)} and rhs {tuple(rhs.shape)}."
        )
    with _no_autocast(rhs):
        return _encode(rhs, (gram + gram.mT) / 2, None, init, solver, tol, max_iter, grad)


def sparse_code_patches(
    x: Tensor,
    dictionary: Tensor,
    lam1: Tensor,
    lam2: float,
    geometry: dict[str, Any],
    *,
    solver: str,
    tol: float,
    max_iter: int | None,
    grad: str,
) -> Tensor:
    """Codes of the patch at every position of a signal or image, atoms in the place of channels.

    ``D x`` over all patches is a convolution, so patches are never laid out. ``geometry`` holds stride, padding and
    dilation.
    """
    x, dictionary, lam1 = _check_patches(x, dictionary, lam1)
    with _no_autocast(x):
        rhs, gram = _correlate(x, dictionary, geometry), gram_matrix(dictionary, lam2)
        codes = _encode(rhs, gram, _shift(lam1, rhs), None, solver, tol, max_iter, grad, as_block=True)
    return codes.movedim(-1, _channel_dim(dictionary))


def infer_patches(
    x: Tensor,
    dictionary: Tensor,
    lam1: Tensor,
    lam2: float,
    geometry: dict[str, Any],
    affine: tuple[Tensor, Tensor],
    *,
    solver: str,
    tol: float,
    max_iter: int | None,
) -> Tensor:
    """``codes * scale + offset`` of every patch (``affine`` holds the two, one value per atom), without a gradient.

    For evaluation: the codes are written over the correlations, scaled on the way, so memory is passed over once.
    """
    x, dictionary, lam1 = _check_patches(x, dictionary, lam1)
    with torch.no_grad(), _no_autocast(x):
        gram = gram_matrix(dictionary, lam2)

        def problem() -> QuadraticProgram:
            rhs = _correlate(x, dictionary, geometry)
            shape.append(rhs.shape)
            return QuadraticProgram(_as_rows(rhs), gram, _shift(lam1, rhs), as_block=True)

        shape: list[torch.Size] = []
        result = coordinate_in_place(problem(), tol, max_iter, affine) if solver in ("auto", "coordinate") else None
        if result is not None and (solver == "coordinate" or max_iter is not None or bool(result.converged.all())):
            codes = result.codes
        else:
            # The correlations are gone, so what coordinate descent could not finish starts anew.
            scale, offset = affine
            codes = get_solver(solver)(problem(), tol, max_iter).codes * scale + offset
    return codes.reshape(shape[0]).movedim(-1, _channel_dim(dictionary))


def solve_patches(
    x: Tensor,
    dictionary: Tensor,
    lam1: Tensor,
    lam2: float,
    geometry: dict[str, Any],
    *,
    solver: str,
    tol: float,
    max_iter: int | None,
) -> Solution:
    """:func:`sparse_code_patches` with its certificate, without a gradient."""
    x, dictionary, lam1 = _check_patches(x, dictionary, lam1)
    with torch.no_grad(), _no_autocast(x):
        rhs, gram = _correlate(x, dictionary, geometry), gram_matrix(dictionary, lam2)
        solution = _certify(rhs, gram, _shift(lam1, rhs), None, solver, tol, max_iter, as_block=True)
    codes = solution.codes.movedim(-1, _channel_dim(dictionary))
    return Solution(codes, solution.residual, solution.converged, solution.n_iter, solution.mean_iter)


def _check_patches(x: Tensor, dictionary: Tensor, lam1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same in a precision to solve in; ``x`` must be of the dictionary's kind."""
    x, dictionary, lam1 = _full_precision(x, dictionary, lam1)
    checks.check_tensor("x", x)
    checks.check_same_kind("x", x, "the dictionary", dictionary)
    return x, dictionary, lam1


def _channel_dim(dictionary: Tensor) -> int:
    """Where channels stand, counted from the end so that unbatched input works."""
    return 1 - dictionary.dim()


def _correlate(x: Tensor, dictionary: Tensor, geometry: dict[str, Any]) -> Tensor:
    """``D x`` at every position, atoms last."""
    if dictionary.dim() == 4:
        # Channels last makes (positions, atoms) a view of the result, and its convolutions are faster on a CPU.
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        rhs = F.conv2d(x, dictionary, **geometry)
    else:
        rhs = F.conv1d(x, dictionary, **geometry)
    return rhs.movedim(_channel_dim(dictionary), -1)


def _shift(lam1: float | Tensor, rhs: Tensor) -> Tensor | None:
    """``lam1`` as one value per atom; None where there is nothing to subtract."""
    n_atoms = rhs.shape[-1]
    if isinstance(lam1, Tensor):
        return lam1.expand(n_atoms)
    return rhs.new_full((n_atoms,), lam1) if lam1 else None


def _encode(
    rhs: Tensor,
    gram: Tensor,
    shift: Tensor | None,
    init: Tensor | None,
    solver: str,
    tol: float,
    max_iter: int | None,
    grad: str,
    as_block: bool = False,
) -> Tensor:
    """Codes with the asked gradient rule, for any leading shape."""
    checks.check_init(init, tuple(rhs.shape), rhs)
    rows, init = _as_rows(rhs), None if init is None else _as_rows(init)
    if grad == "unrolled":
        codes = unrolled(rows, gram, shift, init, tol, max_iter)
    else:
        codes = implicit(rows, gram, shift, init, solver, tol, max_iter, as_block)
    return codes.reshape(rhs.shape)


def _certify(
    rhs: Tensor,
    gram: Tensor,
    shift: Tensor | None,
    init: Tensor | None,
    solver: str,
    tol: float,
    max_iter: int | None,
    as_block: bool = False,
) -> Solution:
    """Codes with residual, convergence and iterations, for any leading shape."""
    checks.check_init(init, tuple(rhs.shape), rhs)
    start = None if init is None else _as_rows(init)
    problem = QuadraticProgram(_as_rows(rhs), gram, shift, start, as_block=as_block)
    result = get_solver(solver)(problem, tol, max_iter)
    residual = normal_kkt_residual(problem.linear(), gram, result.codes)
    leading = rhs.shape[:-1]
    return Solution(
        codes=result.codes.reshape(rhs.shape),
        residual=residual.reshape(leading),
        converged=result.converged.reshape(leading),
        n_iter=result.n_iter,
        mean_iter=result.mean_iter,
    )


def _as_rows(values: Tensor) -> Tensor:
    """``(..., n)`` as ``(n_signals, n)``; an empty batch has no size to infer."""
    return values.reshape(values.shape[:-1].numel(), values.shape[-1])


def _check_dense(x: Any, dictionary: Any, lam1: Any, lam2: Any) -> None:
    checks.check_tensor("x", x)
    checks.check_tensor("dictionary", dictionary)
    checks.check_same_kind("x", x, "dictionary", dictionary)
    if dictionary.dim() != 2 or 0 in dictionary.shape:
        raise ValueError(
            f"dictionary must have shape (n_atoms, n_features), atoms as rows; got {tuple(dictionary.shape)}."
        )
    if x.dim() == 0 or x.shape[-1] != dictionary.shape[1]:
        n_features = "no" if x.dim() == 0 else x.shape[-1]
        hint = " Atoms are rows: did you pass the transpose?" if x.dim() and x.shape[-1] == len(dictionary) else ""
        raise ValueError(
            f"x has {n_features} features but the dictionary's atoms have {dictionary.shape[1]} "
            f"(shapes {tuple(x.shape)} and {tuple(dictionary.shape)}).{hint}"
        )
    checks.check_penalty("lam1", lam1, dictionary, len(dictionary))
    checks.check_penalty("lam2", lam2, dictionary, None)


def _autocast_active(*values: Any) -> bool:
    kinds = {v.device.type for v in values if isinstance(v, Tensor)}
    return any(torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind) for kind in kinds)


def _full_precision(*values: Any) -> tuple[Any, ...]:
    """Under autocast, half-precision tensors as float32: codes decide by sign, which half precision blurs."""
    if not _autocast_active(*values):
        return values
    half = (torch.float16, torch.bfloat16)
    return tuple(v.float() if isinstance(v, Tensor) and v.dtype in half else v for v in values)


def _no_autocast(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Keep autocast from lowering the products inside."""
    if not _autocast_active(x):
        return contextlib.nullcontext()
    return torch.autocast(x.device.type, enabled=False)
