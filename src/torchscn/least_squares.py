"""``nnls(A, b)``: non-negative least squares as scipy has it, for many problems at once, with gradients.

Here are the arguments, the shapes and the derivatives; :mod:`torchscn.lawson_hanson` solves. Everything is computed in
double precision.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchscn.checks import check_number
from torchscn.constraints import OnSupport
from torchscn.gradients import implicit
from torchscn.lawson_hanson import LeastSquares, in_pieces
from torchscn.options import Options
from torchscn.problem import Problem, power_of_two
from torchscn.tensors import as_rows, is_readable, is_transformed, no_autocast

__all__ = ["nnls"]

_EPS = torch.finfo(torch.float64).eps
_GRADIENT_TOL = 1e-10  # of the derivatives


def nnls(A: Any, b: Any, maxiter: int | None = None) -> tuple[Any, Any]:
    r"""Non-negative least squares: :math:`\min_{x \ge 0} \|A x - b\|`, for one problem or many.

    Exact up to rounding, and differentiable in ``A`` and ``b`` where they are tensors. Numpy arrays (or lists) give
    numpy arrays, tensors give tensors; integers become floating point numbers. Everything is computed in float64.

    Args:
        A: matrix ``(m, n)``, or a batch of them ``(..., m, n)``.
        b: right-hand sides: a vector ``(m,)``, one vector for each matrix ``(..., m)``, or the columns of
            ``(..., m, k)``. As for :func:`torch.linalg.solve`, ``b`` holds vectors if it has one dimension or the
            shape of ``A`` without its last dimension.
        maxiter: cap on the iterations of every problem; None means as many as it takes.

    Returns:
        ``(x, rnorm)``: the solutions, ``(..., n)`` or ``(..., n, k)``, and ``||A x - b||`` of each. A problem with NaN
        or infinity has NaN for an answer; the others are not affected.

    Raises:
        RuntimeError: a problem was not solved within ``maxiter`` iterations.

    Note:
        Where the columns in use are linearly dependent, there are many solutions; one of them is returned.

    Example:
        >>> x, rnorm = nnls(np.array([[1, 0], [1, 0], [0, 1]]), np.array([2, 1, 1]))
        >>> x.round(3).tolist(), round(rnorm, 3)
        ([1.5, 1.0], 0.707)
    """
    if maxiter is not None:
        check_number("maxiter", maxiter, at_least=1, whole=True)
    matrix, sides = _as_tensors(A, b)
    dtype = matrix.dtype
    is_vector = sides.dim() == 1 or sides.shape == matrix.shape[:-1]
    _check_shapes(matrix, sides, is_vector)
    matrix, sides = matrix.double(), (sides[..., None] if is_vector else sides).double()
    with no_autocast(sides):
        matrix_unit, unit = _unit(matrix, (-2, -1)), _unit(sides, (-2,))
        matrix, sides = _divided(matrix, matrix_unit), _divided(sides, unit)
        x = _solve(matrix, sides, maxiter)
        rnorm = in_pieces(lambda b, z: torch.linalg.vector_norm(b - matrix @ z, dim=-2), sides, x)
        x, rnorm = _divided(x, matrix_unit / unit), rnorm * unit.squeeze(-2)
    x, rnorm = x.to(dtype), rnorm.to(dtype)
    if is_vector:
        x, rnorm = x.squeeze(-1), rnorm.squeeze(-1)
    if isinstance(A, Tensor) or isinstance(b, Tensor):
        return x, rnorm
    return x.numpy(), rnorm.numpy() if rnorm.dim() else rnorm.item()


def _as_tensors(A: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Both as tensors of one floating point type, on the device of the one that is a tensor."""
    device = next((value.device for value in (A, b) if isinstance(value, Tensor)), None)
    matrix, sides = (_as_tensor(name, value, device) for name, value in (("A", A), ("b", b)))
    if matrix.device != sides.device:
        raise ValueError(f"A is on {matrix.device} but b is on {sides.device}; move one of them.")
    dtype = torch.promote_types(matrix.dtype, sides.dtype)
    return matrix.to(dtype), sides.to(dtype)


def _as_tensor(name: str, value: Any, device: torch.device | None) -> Tensor:
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        if array.dtype.kind not in "buif":
            raise TypeError(f"{name} must hold real numbers; got {array.dtype}.")
        if array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float64)
        # Shared where torch can: neither read-only memory nor steps backwards.
        usable = array.flags.writeable and min(array.strides, default=0) >= 0
        value = torch.as_tensor(array if usable else array.copy(), device=device)
    if value.is_complex():
        raise TypeError(f"{name} must hold real numbers; got {str(value.dtype).removeprefix('torch.')}.")
    kept: Tensor = value if value.dtype in (torch.float32, torch.float64) else value.double()
    return kept


def _check_shapes(matrix: Tensor, sides: Tensor, is_vector: bool) -> None:
    shapes = f"(A {tuple(matrix.shape)}, b {tuple(sides.shape)})"
    if matrix.dim() < 2 or 0 in matrix.shape[-2:]:
        raise ValueError(f"A must have at least one row and one column, shape (..., m, n) {shapes}.")
    if sides.dim() == 0:
        raise ValueError(f"b must be a vector (m,), vectors (..., m), or columns (..., m, k) {shapes}.")
    n_rows = sides.shape[-1] if is_vector else sides.shape[-2]
    if n_rows != matrix.shape[-2]:
        hint = " Is A the transpose of what it should be?" if n_rows == matrix.shape[-1] else ""
        if not is_vector and sides.shape[-1] == matrix.shape[-2]:
            hint = " Right-hand sides are columns: is b the transpose of what it should be?"
        raise ValueError(f"A has {matrix.shape[-2]} rows but b has {n_rows} {shapes}.{hint}")
    if not is_vector:
        try:
            torch.broadcast_shapes(matrix.shape[:-2], sides.shape[:-2])
        except RuntimeError:
            raise ValueError(f"the batches of A and b do not go together {shapes}.") from None


def _unit(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    """1; a power of two where numbers are so large or so small that their squares would overflow or vanish."""
    size = torch.linalg.vector_norm(values.detach(), torch.inf, dim=dims, keepdim=True)
    return torch.where((size > 1e100) | (size < 1e-100), power_of_two(size), 1.0)


def _divided(values: Tensor, units: Tensor) -> Tensor:
    """Divided where there is something to divide by: most right-hand sides need no copy."""
    return values if is_readable(units) and bool((units == 1).all()) else values / units


def _solve(matrix: Tensor, sides: Tensor, maxiter: int | None) -> Tensor:
    """Solutions ``(..., n, k)`` for sides ``(..., m, k)``, with their derivatives."""
    if is_transformed():
        x: Tensor = _Constant.apply(matrix, sides, maxiter)  # type: ignore[no-untyped-call]
    else:
        x = _solve_constant(matrix.detach(), sides.detach(), maxiter)
        if not (torch.is_grad_enabled() and (matrix.requires_grad or sides.requires_grad)):
            return x
    # On its support the solution is linear, A_S' (b - A x) = 0, so one Newton step from it has all its derivatives.
    gradient, free = matrix.mT @ (sides - matrix @ x), (x > 0).to(x.dtype)
    step = _newton_step(matrix, gradient, free)
    return x + (step - step.detach())


def _newton_step(matrix: Tensor, gradient: Tensor, free: Tensor) -> Tensor:
    """``G_SS^-1 gradient_S``, zero outside the support, for columns ``(..., n, k)``."""
    if matrix.dim() == 2:
        system = Problem(as_rows(gradient.mT), matrix.mT @ matrix, constraint=OnSupport(as_rows(free.mT)))
        return implicit(system, Options(tol=_GRADIENT_TOL)).reshape(gradient.mT.shape).mT
    free = free.mT[..., None]  # (..., k, n, 1)
    gram = (matrix.mT @ matrix)[..., None, :, :] * free * free.mT
    # Where columns in use are dependent, a rounding-level ridge picks one of many derivatives.
    ridge = torch.where(free > 0, 16 * _EPS * gram.diagonal(dim1=-2, dim2=-1)[..., None], 1.0)
    step: Tensor = torch.linalg.solve(gram + torch.diag_embed(ridge.squeeze(-1)), gradient.mT[..., None] * free)
    return step.squeeze(-1).mT


class _Constant(torch.autograd.Function):
    """Solutions as constants, for the transforms of ``torch.func``, which must not look inside."""

    @staticmethod
    def forward(matrix: Tensor, sides: Tensor, maxiter: int | None) -> Tensor:
        return _solve_constant(matrix, sides, maxiter)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        return None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], matrix: Tensor, sides: Tensor, maxiter: int | None
    ) -> tuple[Tensor, int]:
        """A larger batch, in front of the batches there are."""
        own_batch = max(
            value.dim() - 2 - (dim is not None) for value, dim in ((matrix, in_dims[0]), (sides, in_dims[1]))
        )
        if in_dims[0] is not None:
            matrix = _in_front(matrix, in_dims[0], own_batch)
        if in_dims[1] is not None:
            sides = _in_front(sides, in_dims[1], own_batch)
        x = _Constant.apply(matrix, sides, maxiter)  # type: ignore[no-untyped-call]
        return x, 0


def _in_front(value: Tensor, dim: int, n_dims: int) -> Tensor:
    """The dimension ``dim`` before ``n_dims`` others and those of a matrix."""
    value = value.movedim(dim, 0)
    return value.reshape(len(value), *(1,) * (n_dims + 3 - value.dim()), *value.shape[1:])


@torch.no_grad()
def _solve_constant(matrix: Tensor, sides: Tensor, maxiter: int | None) -> Tensor:
    if matrix.dim() == 2:
        problems = LeastSquares.make(matrix[None], as_rows(sides.mT))
        codes, is_exact = problems.by_normal_equations(maxiter)
        x = problems.finish(codes, ~is_exact, maxiter)
        return x.reshape(*sides.mT.shape[:-1], x.shape[-1]).mT
    batch = torch.broadcast_shapes(matrix.shape[:-2], sides.shape[:-2])
    *_, n_rows, n_columns = matrix.shape
    # A matrix for each column of the right-hand sides.
    batch = (*batch, sides.shape[-1])
    each = matrix[..., None, :, :].expand(*batch, n_rows, n_columns).reshape(math.prod(batch), n_rows, n_columns)
    problems = LeastSquares.make(each, as_rows(sides.mT.expand(*batch, n_rows)))
    codes, is_exact = problems.by_normal_equations(maxiter)
    return problems.finish(codes, ~is_exact, maxiter).reshape(*batch, n_columns).mT
