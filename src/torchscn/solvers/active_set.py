"""The exact solver: optimal on the support, and no other support is better."""

from dataclasses import replace

from torchscn.constraints import Bounds, NonNegative, OnSupport, SumTo
from torchscn.kernels import sweeps_for
from torchscn.options import Options
from torchscn.problem import Problem, Result
from torchscn.solvers.iterate import rounding_level, sweep_rule
from torchscn.solvers.registry import register_solver

__all__ = ["active_set", "can_finish"]


@register_solver("active_set")
def active_set(problem: Problem, options: Options) -> Result:
    """Solve on the support directly, let a sweep over the atoms correct the support, and repeat until it stays.

    The codes are exact up to rounding; ``tol`` is not used. Every step lowers the objective, so that signals that are
    stopped by ``max_iter`` (1,000 unless given) and reported as not converged still have the best codes found.

    References:
        Exact steps on a face, with projected steps that change it: J. J. Moré and G. Toraldo, On the solution of large
        quadratic programming problems with bound constraints, SIAM J. Optimization 1 (1991).
    """
    if not can_finish(problem):
        raise ValueError(
            f"solver='active_set' does not support the constraint {problem.constraint.kind!r}; use 'fista'."
        )
    exact = replace(options, tol=rounding_level(problem.gram), stop="signal")
    return sweeps_for(problem)(problem, sweep_rule(problem, exact, finishes=True))


def can_finish(problem: Problem) -> bool:
    """Whether exact steps exist for the constraint of the problem."""
    return isinstance(problem.constraint, (NonNegative, OnSupport, Bounds, SumTo))
