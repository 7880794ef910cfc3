"""FISTA, accelerated projected gradient: the paper's solver. A step is one matrix product, so it suits any device."""

import torch
from torch import Tensor

from torchscn.options import Options
from torchscn.problem import Problem, Result
from torchscn.solvers.iterate import iterate, mark_bad_signals, reachable_tol
from torchscn.solvers.registry import register_solver

__all__ = ["fista"]

MAX_ITER = 10_000
"""Cap on the steps when ``max_iter`` is None."""


@register_solver("fista")
def fista(problem: Problem, options: Options) -> Result:
    """Projected gradient steps with Nesterov's momentum, step one over the largest eigenvalue of the Gram matrix.

    ``tol=0`` with a ``max_iter`` runs exactly that many steps of the published method (the paper's authors use 50).
    With a tolerance, the momentum of a signal restarts whenever it points uphill, which keeps convergence linear. At
    most 10,000 steps unless ``max_iter`` says otherwise. Every operation is differentiable: autograd through this
    function is ``grad="unrolled"``.

    References:
        A. Beck and M. Teboulle, A fast iterative shrinkage-thresholding algorithm for linear inverse problems, SIAM J.
        Imaging Sciences 2 (2009). B. O'Donoghue and E. Candès, Adaptive restart for accelerated gradient schemes,
        Foundations of Computational Mathematics 15 (2015).
    """
    tol = reachable_tol(options, problem.gram)
    start = problem.start()
    codes = torch.zeros_like(problem.rhs) if start is None else start
    max_iter = MAX_ITER if options.max_iter is None else options.max_iter
    codes, converged, n_iter = iterate(_Step(problem, restart=tol > 0), codes, tol, max_iter)
    codes, converged = mark_bad_signals(problem, codes, converged)
    return Result(problem.finish(codes), converged, n_iter, float(n_iter))


class _Step:
    """One step, carrying the extrapolated point and the momentum of every signal."""

    def __init__(self, problem: Problem, restart: bool):
        gram = problem.gram + problem.constraint.ridge(problem.gram.dtype) * torch.diag(problem.gram.diagonal())
        scale = 1 / _largest_eigenvalue(gram)
        # y - scale * (y G - rhs) = y contraction + target
        self.contraction = torch.eye(len(gram), dtype=gram.dtype, device=gram.device) - scale * gram
        # Nothing pulls the code of an atom without energy back, so it stays 0.
        self.target = scale * problem.linear() * problem.has_energy()
        self.project = problem.constraint.project
        self.restart = restart
        self.momentum = torch.ones_like(problem.rhs[..., :1])
        self.ahead: Tensor | None = None

    def __call__(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        ahead = codes if self.ahead is None else self.ahead
        following = self.project(torch.addmm(self.target, ahead, self.contraction))
        moved = following - codes
        if self.restart:
            uphill = ((ahead - following) * moved).detach().sum(-1, keepdim=True) > 0
            self.momentum = torch.where(uphill, 1.0, self.momentum)
        momentum = (1 + (1 + 4 * self.momentum.square()).sqrt()) / 2
        self.ahead = following + (self.momentum - 1) / momentum * moved
        self.momentum = momentum
        # Momentum can stand still at a turning point, so the gradient step's own length counts too.
        change = torch.maximum(moved.detach().abs(), (following - ahead).detach().abs()).amax(-1)
        return following, change


def _largest_eigenvalue(gram: Tensor) -> Tensor:
    """Largest eigenvalue, 1 for a zero matrix; a constant for the gradient, as no fixed point depends on the step."""
    # An eigensolver refuses NaN; the rows are marked afterwards.
    largest = torch.linalg.eigvalsh(gram.detach().nan_to_num(0, 0, 0))[-1]
    return torch.where(largest > 0, largest, torch.ones_like(largest))
