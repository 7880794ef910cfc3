"""Non-negative least squares, exact to rounding: many problems with one matrix, or one each.

Everything is computed on ``A`` itself where it matters, because ``A' A`` has the square of its condition. An orthogonal
transformation makes tall matrices square. The normal equations then find the supports at the speed of the kernel, and
corrections from the residual ``b - A x`` take back what they have cost (Å. Björck, Stability analysis of the method of
seminormal equations, Linear Algebra and its Applications 88, 1987). Solutions that still do not fulfil the optimality
conditions to rounding go through the method of Lawson and Hanson with QR factorisations, many at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchscn.constraints import OnSupport
from torchscn.options import Options
from torchscn.problem import Problem, power_of_two
from torchscn.solvers import SOLVERS

__all__ = ["LeastSquares", "in_pieces"]

_EPS = torch.finfo(torch.float64).eps
_SUPPORT_TOL = 1e-9  # of the codes from the normal equations, before they are corrected
_SYSTEM_TOL = 1e-6  # of a correction, relative to itself
_ROUNDING = 16 * _EPS  # of the optimality conditions, relative to what is summed up in them
_SETTLED = 1e-8  # second correction, relative to the solution, up to which the normal equations are good enough
_MANY_COLUMNS = (
    64  # from which on it is worth to begin with a support from the normal equations, though they are singular
)
_INDEPENDENT = 1e-8  # least squared part of a column of such a support that those before it do not explain
_CHUNK_VALUES = 1 << 22  # of the matrices factorised at a time
_PIECE_VALUES = 1 << 17  # of the right-hand sides looked at a time


def _is_regular(gram: Tensor) -> Tensor:
    """Which Gram matrices of columns of like norms are not singular as far as rounding can tell."""
    factor, failures = torch.linalg.cholesky_ex(gram)
    smallest = factor.diagonal(dim1=-2, dim2=-1).square().amin(-1)
    regular: Tensor = (failures == 0) & (smallest > 4 * _EPS * gram.shape[-1])
    return regular


class _Found(NamedTuple):
    codes: Tensor
    is_exact: Tensor


@dataclass(frozen=True)
class LeastSquares:
    """``min ||b - A x||`` over ``x >= 0``, with columns of norms near 1."""

    matrix: Tensor  # (1, m, n), one for all, or (n_problems, m, n)
    scale: Tensor  # (1, n) or (n_problems, n), what columns were divided by
    rows: Tensor  # (n_problems, m), the right-hand sides
    sizes: Tensor  # (n_problems, 1), norms of the right-hand sides before they were transformed

    @classmethod
    def make(cls, matrix: Tensor, rows: Tensor) -> "LeastSquares":
        """Scale the columns by powers of two, which costs no accuracy, and make a tall matrix for all square."""
        scale = power_of_two(torch.linalg.vector_norm(matrix, torch.inf, dim=-2))  # so that no square can overflow
        scale = scale * power_of_two(torch.linalg.vector_norm(matrix / scale[:, None, :], dim=-2))
        sizes = in_pieces(lambda b: torch.linalg.vector_norm(b, dim=-2), rows.mT)[:, None]
        problems = cls(matrix / scale[:, None, :], scale, rows, sizes)
        return problems.squared() if len(matrix) == 1 else problems

    def squared(self) -> "LeastSquares":
        """The same problems with no more rows than columns, by an orthogonal transformation."""
        if self.matrix.shape[-2] <= self.matrix.shape[-1]:
            return self
        # Infinity can stop a factorisation, NaN goes through it.
        orthogonal, matrix = torch.linalg.qr(self.matrix.nan_to_num(torch.nan, torch.nan, torch.nan))
        rows = self.rows @ orthogonal[0] if len(matrix) == 1 else (self.rows[:, None, :] @ orthogonal).squeeze(1)
        return replace(self, matrix=matrix, rows=rows)

    def take(self, chosen: Tensor) -> "LeastSquares":
        """The chosen problems."""
        matrix, scale = (value if len(value) == 1 else value[chosen] for value in (self.matrix, self.scale))
        return LeastSquares(matrix, scale, self.rows[chosen], self.sizes[chosen])

    def is_finite(self) -> Tensor:
        """Which problems are finite."""
        return torch.isfinite(self.rows).all(-1) & torch.isfinite(self.matrix).all((-2, -1))

    def residual(self, codes: Tensor) -> Tensor:
        """``b - A x``."""
        if len(self.matrix) == 1:
            return self.rows - codes @ self.matrix[0].mT
        return self.rows - (self.matrix @ codes[:, :, None]).squeeze(-1)

    def correlate(self, residual: Tensor) -> Tensor:
        """``A' r``."""
        if len(self.matrix) == 1:
            return residual @ self.matrix[0]
        return (residual[:, None, :] @ self.matrix).squeeze(1)

    def gradient(self, codes: Tensor) -> Tensor:
        """``A' (b - A x)``."""
        return self.correlate(self.residual(codes))

    def rounding(self, codes: Tensor) -> Tensor:
        """What cannot be told from zero in the gradient."""
        return _ROUNDING * (self.sizes + codes.sum(-1, keepdim=True))

    def by_normal_equations(self, maxiter: int | None) -> _Found:
        """Solutions by the kernel, and which of them are exact."""
        gram = self.matrix.mT @ self.matrix
        is_regular = _is_regular(gram).expand(len(self.rows))
        if not is_regular.any():
            return _Found(self._by_active_sets(gram, maxiter), torch.zeros_like(is_regular))
        gram = gram[0] if len(gram) == 1 else gram
        problem = Problem(self.correlate(self.rows), gram)
        codes = SOLVERS["auto"](problem, Options(tol=_SUPPORT_TOL, max_iter=maxiter)).codes
        support = OnSupport((codes > 0).to(codes.dtype))
        for _ in range(2):
            system = Problem(self.gradient(codes), gram, constraint=support)
            step = SOLVERS["auto"](system, Options(tol=_SYSTEM_TOL)).codes
            codes = codes + step
        settled = _norms(step) <= _SETTLED * _norms(codes)
        gradient, rounding = self.gradient(codes), self.rounding(codes)
        optimal = (codes >= 0) & torch.where(codes > 0, gradient.abs() <= rounding, gradient <= rounding)
        return _Found(torch.where(is_regular[:, None], codes, 0.0), (settled & optimal).all(-1) & is_regular)

    def _by_active_sets(self, gram: Tensor, maxiter: int | None) -> Tensor:
        """Codes to start from where Gram matrices are singular; zero where those of the kernel are no good start.

        Nothing is certain about supports then, but in large problems most of their columns are right.
        """
        codes = self.correlate(self.rows)
        if gram.shape[-1] < _MANY_COLUMNS:
            return torch.zeros_like(codes)
        for chunk in torch.arange(len(codes)).split(max(1, _CHUNK_VALUES // gram.shape[-1] ** 2)):
            own = gram.expand(len(codes), -1, -1)[chunk]
            found = SOLVERS["active_set"](Problem(codes[chunk], own), Options(max_iter=maxiter)).codes
            free = (found > 0).to(found.dtype)
            on_support = own * free[:, :, None] * free[:, None, :] + torch.diag_embed(1 - free)
            factor, failures = torch.linalg.cholesky_ex(on_support)
            smallest = factor.diagonal(dim1=-2, dim2=-1).square().amin(-1)
            is_good = (failures == 0) & (smallest > _INDEPENDENT)
            codes[chunk] = torch.where(is_good[:, None], found, 0.0)
        return codes

    def finish(self, codes: Tensor, wanted: Tensor, maxiter: int | None) -> Tensor:
        """Solutions, of the wanted problems by Lawson and Hanson's method, in the units of the matrix that was given.

        Args:
            codes: to start from, or for problems that are not wanted, to keep.
            wanted: which problems to solve.
            maxiter: cap on the iterations.

        Raises:
            RuntimeError: there were not enough iterations.
        """
        finite = self.is_finite()
        open_ones = (wanted & finite).nonzero().squeeze(1)
        pivoting = _Pivoting(self.take(open_ones).squared(), codes[open_ones].nan_to_num(0, 0, 0).clamp(min=0))
        n_wanted, most = len(open_ones), 20 * codes.shape[-1] + 100 if maxiter is None else maxiter
        for _ in range(most):
            if not len(open_ones):
                break
            done = pivoting.step()
            codes[open_ones[done]] = pivoting.codes[done]
            open_ones, pivoting = open_ones[~done], pivoting.take((~done).nonzero().squeeze(1))
        if len(open_ones):
            raise RuntimeError(
                f"{len(open_ones):,} of {n_wanted:,} problems were not solved within {most} iterations; "
                "allow more by maxiter."
            )
        return torch.where(finite[:, None], codes / self.scale, torch.nan)


class _Pivoting:
    """Lawson and Hanson's method, one step of every problem at a time.

    A step goes to the optimum on the free columns, or to where the first code on the way becomes zero, and takes that
    column out. At an optimum, the column with the steepest gradient becomes free.
    """

    def __init__(self, problems: LeastSquares, codes: Tensor):
        self.problems, self.codes = problems, codes
        self.free = codes > 0
        self.refused = torch.zeros_like(self.free)  # columns that led to nothing better, from the last optimum on
        # The last optimum on free columns, b - A x there, and its norm.
        self.optimum, self.residual = codes, torch.zeros_like(problems.rows)
        self.least = torch.full_like(codes[:, :1], torch.inf)

    def take(self, chosen: Tensor) -> "_Pivoting":
        """The chosen problems."""
        other = _Pivoting(self.problems.take(chosen), self.codes[chosen])
        for name in ("free", "refused", "optimum", "residual", "least"):
            setattr(other, name, getattr(self, name)[chosen])
        return other

    def step(self) -> Tensor:
        """Take a step; returns which problems are done."""
        best, residual = self._least_squares()
        blocked = self.free & (best <= 0)
        part = torch.where(blocked, torch.where(self.codes > 0, self.codes / (self.codes - best), 0.0), 1.0)
        length = part.amin(-1, keepdim=True)
        leaving = blocked & (part <= length)
        self.refused = self.refused | (leaving & (length == 0))
        self.free = self.free & ~leaving
        self.codes = torch.where(self.free, self.codes + length * (best - self.codes), 0.0)
        arrived = ~blocked.any(-1, keepdim=True)
        self._compare(arrived, residual)
        return self._free_another(arrived)

    def _compare(self, arrived: Tensor, residual: Tensor) -> None:
        """Go back to the last optimum where the new one is not better, which is rounding."""
        # Of the codes as they are: along dependent columns they can be so large that rounding is all that is left.
        misfit = _norms(self.problems.residual(self.codes))
        better = arrived & (misfit < (1 - 4 * _EPS) * self.least)
        worse = arrived & ~better
        self.refused = torch.where(worse, self.refused | (self.codes > 0) & (self.optimum == 0), self.refused & ~better)
        self.codes = torch.where(worse, self.optimum, self.codes)
        self.free = torch.where(worse, self.optimum > 0, self.free)
        self.optimum = torch.where(better, self.codes, self.optimum)
        self.residual = torch.where(better, residual, self.residual)
        self.least = torch.where(better, misfit, self.least)

    def _free_another(self, arrived: Tensor) -> Tensor:
        """Free the steepest column where the codes are optimal on the free ones; returns where there is none."""
        gradient = self.problems.correlate(self.residual)
        misfit = _norms(self.residual)
        useful = arrived & (misfit > self.problems.rounding(self.codes))
        useful = useful & ~self.free & ~self.refused & (gradient > _EPS * misfit)
        steepest = torch.where(useful, gradient * self.problems.scale, -torch.inf).argmax(-1, keepdim=True)
        any_useful = useful.any(-1, keepdim=True)
        self.free = self.free.scatter(-1, steepest, self.free.gather(-1, steepest) | any_useful)
        return (arrived & ~any_useful).squeeze(-1)

    def _least_squares(self) -> tuple[Tensor, Tensor]:
        """The optimum on the free columns, zero elsewhere, and its residual."""
        found, residual = torch.zeros_like(self.codes), torch.empty_like(self.residual)
        sizes, order = self.free.sum(-1).sort()
        begin, widths = 0, sizes.tolist()
        while begin < len(order):
            # Supports of like sizes together, filled up with columns that are kept at zero.
            n_rows = residual.shape[-1]
            end = begin + max(1, _CHUNK_VALUES // (n_rows + widths[begin] + 8) // (widths[begin] + 8))
            end = min(end, int(torch.searchsorted(sizes, sizes[begin] + 8)), len(order))
            chunk, width = order[begin:end], widths[end - 1]
            columns = self.free[chunk].to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :width]
            values, residual[chunk] = self._on_columns(chunk, columns)
            found[chunk] = found[chunk].scatter(-1, columns, values)
            begin = end
        return found, residual

    def _on_columns(self, chunk: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        some, inside = self.problems.take(chunk), self.free[chunk].gather(-1, columns)
        n_rows = some.rows.shape[-1]
        matrix = some.matrix.expand(len(chunk), *some.matrix.shape[-2:])
        matrix = matrix.gather(-1, columns[:, None, :].expand(-1, n_rows, -1)) * inside[:, None, :]
        # A row for each column keeps dependent ones bounded, and those that fill up at zero.
        keep = torch.diag_embed(torch.where(inside, _EPS, 1.0).to(matrix.dtype))
        orthogonal, triangular = torch.linalg.qr(torch.cat([matrix, keep], dim=1))
        span = orthogonal[:, :n_rows]
        right = span.mT @ some.rows[:, :, None]
        # Orthogonal to the free columns as far as rounding lets it, which b - A x is not: that is full of the rounding
        # of x. The gradient of columns that nearly depend on them hangs on it.
        residual = some.rows[:, :, None] - span @ right
        residual = residual - span @ (span.mT @ residual)
        codes = torch.linalg.solve_triangular(triangular, right, upper=True)
        return codes.squeeze(-1), residual.squeeze(-1)


def _norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return norms


def in_pieces(function: Callable[..., Tensor], *columns: Tensor) -> Tensor:
    """A function of columns ``(..., m, k)``, applied to as many at a time as the processor keeps at hand."""
    if columns[0].dim() > 2:
        return function(*columns)
    n_columns = max(1, _PIECE_VALUES // columns[0].shape[0])
    pieces = zip(*(values.split(n_columns, dim=-1) for values in columns), strict=True)
    return torch.cat([function(*piece) for piece in pieces], dim=-1)
