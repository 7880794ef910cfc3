"""Cyclic coordinate descent (Gauss-Seidel) with over-relaxation: the fastest solver on a CPU."""

from torchscn.kernels import SweepRule, sweeps_for
from torchscn.options import Options
from torchscn.problem import Problem, Result
from torchscn.solvers.iterate import reachable_tol
from torchscn.solvers.registry import register_solver

__all__ = ["coordinate"]

MAX_ITER = 1000
"""Cap on the sweeps when ``max_iter`` is None."""


@register_solver("coordinate")
def coordinate(problem: Problem, options: Options) -> Result:
    """Update one atom at a time, over all signals at once, until the codes settle.

    CPU tensors go to the compiled kernel if there is one. At most 1,000 sweeps unless ``max_iter`` says otherwise.

    References:
        Projected successive over-relaxation: O. L. Mangasarian, Solution of symmetric linear complementarity problems
        by iterative methods, J. Optimization Theory and Applications 22 (1977).
    """
    rule = SweepRule(
        tol=reachable_tol(options, problem.gram),
        max_iter=MAX_ITER if options.max_iter is None else options.max_iter,
        by_block=options.stop == "block",
    )
    return sweeps_for(problem)(problem, rule)
