"""FISTA, accelerated projected gradient: the paper's solver. A step is one matrix product, so it suits any device."""

from dataclasses import replace

import torch
from torch import Tensor

from torchscn.constraints import OnSupport
from torchscn.kernels import Conditioning
from torchscn.options import Options
from torchscn.problem import Problem, Result, power_of_two
from torchscn.solvers.iterate import iterate, mark_bad_signals, refuse_vanishing_atoms, step_limit
from torchscn.solvers.registry import register_solver

__all__ = ["fista"]

MAX_ITER = 10_000
"""Cap on the steps when ``max_iter`` is None."""

_MOST_UNEVEN = 1e4  # ratio of norms of atoms up to which one step length for all of them can be judged


@register_solver("fista")
def fista(problem: Problem, options: Options) -> Result:
    """Projected gradient steps with Nesterov's momentum, step one over the largest eigenvalue of the Gram matrix.

    ``tol=0`` with a ``max_iter`` runs exactly that many steps of the published method (the paper's authors use 50).
    With a tolerance, every atom has a step of its own, in units of its energy, and the momentum of a signal restarts
    whenever it points uphill, which keeps convergence linear. Where codes have a sum, all atoms share one step length,
    and nothing is called converged when their norms are more than four orders of magnitude apart. At most 10,000 steps
    unless ``max_iter`` says otherwise. Every operation is differentiable: autograd through this function is
    ``grad="unrolled"``.

    References:
        A. Beck and M. Teboulle, A fast iterative shrinkage-thresholding algorithm for linear inverse problems, SIAM J.
        Imaging Sciences 2 (2009). B. O'Donoghue and E. Candès, Adaptive restart for accelerated gradient schemes,
        Foundations of Computational Mathematics 15 (2015).
    """
    if problem.gram.dim() == 3:
        raise ValueError("solver='fista' needs one dictionary for all signals; use solver='auto' for one each.")
    norms = problem.energy().detach().clamp(min=0).sqrt()
    rhs, gram = problem.constraint.regular_form(problem.rhs, problem.gram)
    problem = replace(problem, rhs=rhs, gram=gram)
    fixed = options.has_fixed_steps
    scaled, unit = (problem, 1.0) if fixed else problem.well_scaled()
    step = _Step(scaled, published=fixed)
    limit = None if fixed else step_limit(scaled, options, step.system())
    if limit is not None and not scaled.constraint.is_separable:
        # What codes contribute is judged by the norms that atoms have, which the regular form hides.
        limit = replace(limit, norms=norms / power_of_two(norms.amax()))
    refuse_vanishing_atoms(problem)
    start = scaled.start()
    codes = scaled.constraint.project(torch.zeros_like(scaled.rhs)) if start is None else start
    max_iter = MAX_ITER if options.max_iter is None else options.max_iter
    codes, converged, n_iter = iterate(step, codes, limit, max_iter)
    if not fixed:
        converged = converged & ~_is_cancelling(scaled, codes, options)
        # Steps towards zero never arrive.
        tiny = (codes.abs() <= torch.finfo(codes.dtype).eps ** 2) & (scaled.constraint.movable(codes) > 0)
        codes = torch.where(tiny, torch.zeros_like(codes), codes)
        if not scaled.constraint.is_separable:
            codes = scaled.constraint.project(codes)  # once more, for what rounding has left
            smallest = torch.where(norms > 0, norms, torch.inf).amin()
            converged = converged & (norms.amax() <= _MOST_UNEVEN * smallest)
    codes, converged = mark_bad_signals(problem, codes * unit, converged)
    return Result(problem.finish(codes), converged, n_iter, float(n_iter))


def _is_cancelling(problem: Problem, codes: Tensor, options: Options) -> Tensor:
    if isinstance(problem.constraint, OnSupport):
        return torch.zeros(len(codes), dtype=torch.bool, device=codes.device)
    return Conditioning(problem.gram.detach()).is_cancelling(problem, codes, options.tol).detach()


class _Step:
    """One step, carrying the extrapolated point and the momentum of every signal.

    Args:
        problem: what is to be solved.
        published: one length for all atoms and no restarts. Otherwise every atom has a step of its own, in units of its
            energy, if the constraint allows; atoms of small norm would hardly move with a common one.
    """

    def __init__(self, problem: Problem, published: bool):
        self.gram = problem.gram + problem.constraint.ridge(problem.gram.dtype) * torch.diag(problem.gram.diagonal())
        energy = self.gram.detach().diagonal()
        common = published or not problem.constraint.is_separable
        self.energy = torch.ones_like(energy) if common else torch.where(energy > 0, energy, 1.0)
        norms = self.energy.sqrt()
        self.length = 1 / _largest_eigenvalue(self.gram / norms / norms[:, None])
        lengths = self.length / self.energy
        # y - lengths * (y G - rhs) = y contraction + target
        identity = torch.eye(len(self.gram), dtype=self.gram.dtype, device=self.gram.device)
        self.contraction = identity - self.gram * lengths
        # Nothing pulls the code of an atom without energy back, so it stays 0.
        self.target = problem.linear() * lengths * problem.has_energy()
        self.lengths, self.settle = lengths, problem.constraint.settle
        self.restart = not published
        self.momentum = torch.ones_like(problem.rhs[..., :1])
        self.ahead: Tensor | None = None

    def system(self) -> Tensor:
        """W with ``G error = W step``, see :func:`step_limit`."""
        return torch.diag(self.energy / self.length) - self.gram

    def __call__(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        ahead = codes if self.ahead is None else self.ahead
        following = self.settle(torch.addmm(self.target, ahead, self.contraction), self.lengths)
        moved, step = following - codes, following - ahead
        if self.restart:
            uphill = (-step * moved * self.energy).detach().sum(-1, keepdim=True) > 0
            self.momentum = torch.where(uphill, 1.0, self.momentum)
        momentum = (1 + (1 + 4 * self.momentum.square()).sqrt()) / 2
        self.ahead = following + (self.momentum - 1) / momentum * moved
        self.momentum = momentum
        return following, step


def _largest_eigenvalue(gram: Tensor) -> Tensor:
    """Largest eigenvalue, 1 for a zero matrix; a constant for the gradient, as no fixed point depends on the step."""
    # An eigensolver refuses NaN; the rows are marked afterwards.
    largest = torch.linalg.eigvalsh(gram.detach().nan_to_num(0, 0, 0))[-1]
    return torch.where(largest > 0, largest, torch.ones_like(largest))
