"""Gauss-Seidel sweeps in plain torch: for every device and every constraint on single codes."""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from torchscn.constraints import Bounds, Constraint, OnSupport
from torchscn.kernels.conditioning import Conditioning, relaxation
from torchscn.kernels.exact import exact_step
from torchscn.kernels.rule import SweepRule, VanishingAtomError
from torchscn.kernels.search import torch_active_set
from torchscn.problem import Problem, Result

__all__ = ["torch_sweeps"]

_GROUP = 16  # atoms whose residuals are computed by one matrix product
_PATIENCE = 16  # sweeps before exact steps take over, where they may


@torch.no_grad()
def torch_sweeps(problem: Problem, rule: SweepRule) -> Result:
    """Sweep over the atoms until every signal keeps the promise of the rule.

    All signals take the same number of sweeps, except that exact steps are taken only by those that need them.
    ``by_block`` and ``in_place`` change nothing here.
    """
    if problem.rhs.numel() == 0:
        return _nothing_to_do(problem)
    scaled, unit = problem.well_scaled()
    descent = _Descent(scaled, rule)
    if problem.rhs.is_cpu and problem.has_vanishing_code():
        raise VanishingAtomError
    start = scaled.start()
    codes = scaled.constraint.project(torch.zeros_like(scaled.rhs)) if start is None else start
    patience = min(_PATIENCE, rule.max_iter) if rule.finishes and rule.tol > 0 else rule.max_iter
    codes, done, n_iter = descent.sweep(codes, patience)
    if n_iter < rule.max_iter and not bool(done.all()):
        codes, done, n_iter = _finish(descent, codes, done, n_iter)
    if not isinstance(problem.constraint, OnSupport):
        done = done & ~descent.condition.is_cancelling(scaled, codes, rule.tol)
    codes = codes * unit
    if isinstance(problem.constraint, Bounds):
        codes = problem.constraint.project(codes)  # what was scaled may have lost digits to underflow
    finite = problem.is_finite() & torch.isfinite(codes).all(-1)
    codes = torch.where(finite[:, None], codes, torch.nan)
    return Result(problem.finish(codes), done & finite, n_iter, float(n_iter))


def _nothing_to_do(problem: Problem) -> Result:
    """The result where there are no signals or no atoms."""
    converged = torch.ones(len(problem.rhs), dtype=torch.bool, device=problem.rhs.device)
    return Result(torch.empty_like(problem.rhs), converged, 0, 0.0)


class _Descent:
    """Sweeps over the atoms of a well-scaled problem, with the rule for stopping."""

    def __init__(self, problem: Problem, rule: SweepRule):
        gram, relax = problem.gram, relaxation(problem.gram)
        gram = gram + problem.constraint.ridge(gram.dtype) * torch.diag(gram.diagonal())
        self.problem, self.rule = replace(problem, gram=gram), rule
        self.steps = torch.where(gram.diagonal() > 0, relax / gram.diagonal(), 0.0)
        condition = Conditioning(gram)
        if gram.is_cpu:
            condition.check()
        system = (1 - 1 / relax) * torch.diag(gram.diagonal()) + gram.triu(1)
        self.condition, self.limit = condition, condition.limit(rule, system)

    def of(self, problem: Problem) -> "_Descent":
        """The same for other signals over the same atoms."""
        other = copy.copy(self)
        other.problem = problem
        return other

    def sweep(self, codes: Tensor, max_iter: int) -> tuple[Tensor, Tensor, int]:
        """Codes after at most ``max_iter`` sweeps, which signals are done, and the sweeps taken."""
        # Atoms first, so that one atom's codes over all signals are contiguous.
        rows, codes = self.problem.rhs.mT.contiguous(), codes.mT.contiguous()
        # On other devices reading the stopping test waits for the device, so it is read rarely.
        check_every = 1 if rows.device.type == "cpu" else 8
        done = torch.zeros(rows.shape[1], dtype=torch.bool, device=rows.device)
        n_iter = 0
        while n_iter < max_iter:
            previous = codes.clone()
            _sweep(codes, rows, self.problem.gram, self.steps, self.problem.constraint)
            n_iter += 1
            if n_iter % check_every == 0 or n_iter == max_iter:
                done = self.limit.allows((codes - previous).mT, codes.mT)
                if self.rule.tol > 0 and done.all():
                    break
        return codes.mT.contiguous(), done, n_iter


def _finish(descent: _Descent, codes: Tensor, done: Tensor, n_iter: int) -> tuple[Tensor, Tensor, int]:
    """Exact steps, with sweeps in between that let atoms enter and leave the supports."""
    if isinstance(descent.problem.constraint, Bounds):
        rows = (~done).nonzero().squeeze(-1)
        result = torch_active_set(descent.problem.take(rows, codes[rows]), descent.rule)
        codes[rows], done[rows] = result.codes, result.converged
        return codes, done, n_iter + int(result.n_iter)
    while n_iter < descent.rule.max_iter and not bool(done.all()):
        rows = (~done).nonzero().squeeze(-1)
        problem = descent.problem.take(rows)
        moved, done_now, _ = descent.of(problem).sweep(exact_step(problem, codes[rows]), 2)
        codes[rows], done[rows] = moved, done_now
        n_iter += 1
    return codes, done, n_iter


def _sweep(codes: Tensor, rows: Tensor, gram: Tensor, steps: Tensor, constraint: Constraint) -> None:
    """Update every atom in turn, in place."""
    for first in range(0, len(codes), _GROUP):
        group = slice(first, min(first + _GROUP, len(codes)))
        residual = torch.addmm(rows[group], gram[group], codes, alpha=-1)
        for i, j in enumerate(range(group.start, group.stop)):
            moved = constraint.settle_atom(codes[j] + residual[i] * steps[j], j, steps[j])
            change = moved - codes[j]
            codes[j] = moved
            residual[i + 1 :].addr_(gram[j + 1 : group.stop, j], change, alpha=-1)
