"""The exact solver: find the support, solve on it, verify the optimality conditions."""

from dataclasses import replace

import torch
from torch import Tensor

from torchscn.options import Options
from torchscn.problem import NonNegative, OnSupport, Problem, Result
from torchscn.solvers.coordinate import coordinate
from torchscn.solvers.iterate import mark_bad_signals
from torchscn.solvers.registry import register_solver

__all__ = ["active_set", "can_finish"]

MAX_ITER = 100
"""Cap on the changes of support when ``max_iter`` is None."""

_START = Options(tol=1e-3)  # of the coordinate descent that proposes a first support
_CHUNK_VALUES = 2**20  # of the batched systems in memory at once; small enough for the cache
_FULL_EXCHANGES = 3  # changes of the whole support allowed without progress


@register_solver("active_set")
def active_set(problem: Problem, options: Options) -> Result:
    """Block principal pivoting from a support that coordinate descent proposes.

    Ends with a direct solve on the final support and a check of the optimality conditions, so the residual is at
    rounding level; ``tol`` is not used. At most 100 changes of support unless ``max_iter`` says
    otherwise; a signal still changing then is reported as not converged.

    References:
        J. Kim and H. Park, Fast nonnegative matrix factorization: an active-set-like method and comparisons, SIAM J.
        Scientific Computing 33 (2011).
    """
    if isinstance(problem.constraint, OnSupport):
        return _solve_linear(problem, problem.constraint.mask > 0)
    if not can_finish(problem):
        raise ValueError(
            f"solver='active_set' does not support the constraint {problem.constraint.kind!r}; use 'fista'."
        )
    start = problem.start()
    proposal = coordinate(replace(problem, affine=None, in_place=False), _START).codes if start is None else start
    rhs, gram = problem.linear().detach(), problem.gram.detach()
    # Rows that are not finite would stop a factorisation of the whole batch; they are marked afterwards.
    rhs, gram = rhs.nan_to_num(0, 0, 0), gram.nan_to_num(0, 0, 0)
    search = _Pivoting(rhs, gram, proposal > 0)
    n_iter = search.run(MAX_ITER if options.max_iter is None else options.max_iter)
    codes, converged = mark_bad_signals(problem, search.codes.relu(), search.done & search.solved)
    mean_iter = float(search.n_changes.double().mean()) if len(rhs) else 0.0
    return Result(problem.finish(codes), converged, n_iter, mean_iter)


def can_finish(problem: Problem) -> bool:
    """Whether :func:`active_set` supports the constraint of the problem."""
    return isinstance(problem.constraint, (NonNegative, OnSupport))


def _solve_linear(problem: Problem, support: Tensor) -> Result:
    """One system per signal."""
    codes = _solve_in_chunks(problem.linear(), problem.gram, support)
    everywhere = torch.ones(len(codes), dtype=torch.bool, device=codes.device)
    codes, converged = mark_bad_signals(problem, codes, everywhere)
    return Result(problem.finish(codes), converged, n_iter=1, mean_iter=1.0)


class _Pivoting:
    """The search for every signal's support; only signals that still violate a condition are solved again."""

    def __init__(self, rhs: Tensor, gram: Tensor, support: Tensor):
        self.rhs, self.gram, self.support = rhs, gram, support & (gram.diagonal() > 0)
        n_signals, n_atoms = rhs.shape
        self.codes = torch.zeros_like(rhs)
        self.solved = torch.zeros(n_signals, dtype=torch.bool, device=rhs.device)
        self.done = torch.zeros(n_signals, dtype=torch.bool, device=rhs.device)
        self.n_changes = torch.zeros(n_signals, dtype=torch.int64, device=rhs.device)
        self.fewest = torch.full((n_signals,), n_atoms + 1, device=rhs.device)
        self.exchanges_left = torch.full((n_signals,), _FULL_EXCHANGES, device=rhs.device)

    def run(self, max_iter: int) -> int:
        """Change supports until all conditions hold; returns the rounds used."""
        n_iter = 0
        while n_iter < max_iter and not bool(self.done.all()):
            rows = (~self.done).nonzero().squeeze(-1)
            self.codes[rows] = _solve_in_chunks(self.rhs[rows], self.gram, self.support[rows])
            wrong = self._violations(rows)
            self.n_changes[rows] += 1
            self.done[rows] = ~wrong.any(-1)
            self.solved[rows] = self._solved(rows)
            self.support[rows] ^= self._exchange(rows, wrong)
            n_iter += 1
        return n_iter

    def _violations(self, rows: Tensor) -> Tensor:
        """Negative codes on the support and negative gradients off it, beyond rounding."""
        codes, rhs, inside = self.codes[rows], self.rhs[rows], self.support[rows]
        grad = codes @ self.gram - rhs
        rounding = torch.finfo(rhs.dtype).eps * len(self.gram)
        # The gradient is a difference of terms as large as these.
        terms = codes.abs() @ self.gram.abs() + rhs.abs()
        code_floor = -rounding * codes.abs().amax(-1, keepdim=True)
        grad_floor = -rounding * terms.amax(-1, keepdim=True)
        usable = self.gram.diagonal() > 0
        return torch.where(inside, codes < code_floor, (grad < grad_floor) & usable)

    def _solved(self, rows: Tensor) -> Tensor:
        """Whether the gradient on the support is zero, as far as a factorisation in this dtype can tell."""
        codes, rhs = self.codes[rows], self.rhs[rows]
        grad = torch.where(self.support[rows], codes @ self.gram - rhs, 0.0)
        terms = codes.abs() @ self.gram.abs() + rhs.abs()
        return (grad.abs() <= 100 * torch.finfo(rhs.dtype).eps * len(self.gram) * terms).all(-1)

    def _exchange(self, rows: Tensor, wrong: Tensor) -> Tensor:
        """Which atoms change sides: all violators while that helps, else the last one, which cannot cycle."""
        n_wrong = wrong.sum(-1)
        better = n_wrong < self.fewest[rows]
        left = torch.where(better, _FULL_EXCHANGES, self.exchanges_left[rows] - 1)
        self.fewest[rows] = torch.minimum(self.fewest[rows], n_wrong)
        self.exchanges_left[rows] = left.clamp(min=-1)
        last = wrong & (wrong.flip(-1).cumsum(-1).flip(-1) == 1)
        return torch.where((left >= 0)[:, None], wrong, last)


def _solve_in_chunks(rhs: Tensor, gram: Tensor, support: Tensor) -> Tensor:
    """Solve every row's system restricted to its support, rows with supports of about the same size together."""
    if not len(rhs):
        return torch.zeros_like(rhs)
    sizes, order = support.sum(-1).sort(descending=True)
    parts, begin, widths = [], 0, sizes.tolist()
    while begin < len(order):
        width = widths[begin]
        rows = order[begin : begin + max(1, _CHUNK_VALUES // max(1, width**2))]
        parts.append(_solve_on_support(rhs[rows], gram, support[rows], width))
        begin += len(rows)
    return torch.cat(parts)[order.argsort()]


def _solve_on_support(rhs: Tensor, gram: Tensor, support: Tensor, width: int) -> Tensor:
    """``G_SS a_S = rhs_S``, zero off the support, by Cholesky with a rounding-level ridge and two refinements.

    Args:
        rhs: right-hand sides, signals x atoms.
        gram: the matrix of all atoms.
        support: which atoms take part, signals x atoms.
        width: size of the largest support; only that many unknowns are kept per row.
    """
    # Atoms of the support first, in their order; a smaller support is filled up with unknowns that stay zero.
    atoms = support.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :width]
    inside = support.gather(-1, atoms)
    system = gram[atoms[:, :, None], atoms[:, None, :]] * (inside[:, :, None] & inside[:, None, :])
    ridge = torch.finfo(rhs.dtype).eps * len(gram) * 4 * gram.diagonal()[atoms]
    factor, _ = torch.linalg.cholesky_ex(system + torch.diag_embed(torch.where(inside, ridge, 1.0)))
    right = (rhs.gather(-1, atoms) * inside)[..., None]
    codes = torch.cholesky_solve(right, factor)
    for _ in range(2):
        codes = codes + torch.cholesky_solve(right - system @ codes, factor)
    return torch.zeros_like(rhs).scatter(-1, atoms, codes.squeeze(-1))
