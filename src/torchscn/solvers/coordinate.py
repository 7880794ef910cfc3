"""Cyclic coordinate descent (Gauss-Seidel) with over-relaxation: the fastest solver on a CPU."""

import torch
from torch import Tensor

from torchscn.kernels import SweepRule, sweeps_for
from torchscn.options import Options
from torchscn.problem import Problem, Result
from torchscn.solvers.iterate import reachable_tol
from torchscn.solvers.registry import register_solver

__all__ = ["coordinate", "relaxation"]

MAX_ITER = 1000
"""Cap on the sweeps when ``max_iter`` is None."""


@register_solver("coordinate")
def coordinate(problem: Problem, options: Options) -> Result:
    """Update one atom at a time, over all signals at once, until the codes settle.

    CPU tensors go to the compiled kernel where there is one. At most 1,000 sweeps unless ``max_iter`` says otherwise.

    References:
        Projected successive over-relaxation: O. L. Mangasarian, Solution of symmetric linear complementarity problems
        by iterative methods, J. Optimization Theory and Applications 22 (1977).
    """
    rule = SweepRule(
        tol=reachable_tol(options, problem.gram),
        max_iter=MAX_ITER if options.max_iter is None else options.max_iter,
        relax=relaxation(problem.gram),
        by_block=options.stop == "block",
    )
    return sweeps_for(problem)(problem, rule)


def relaxation(gram: Tensor) -> float:
    """Over-relaxation suited to a Gram matrix.

    Nearly orthogonal atoms want plain Gauss-Seidel; the more an atom overlaps the others (sum of its squared
    correlations, about n_atoms / n_features for random atoms), the more a longer step saves. The line was fitted to
    sweep counts on random dictionaries of 16 to 256 atoms; any value between 0 and 2 converges.

    Example:
        >>> relaxation(torch.eye(3))
        1.0
    """
    with torch.no_grad():
        diagonal = gram.diagonal()
        energy = torch.where(diagonal > 0, diagonal, torch.inf)
        overlap = float((gram.square() / energy).sum(-1).div(energy).mean()) - 1.0
    # A NaN Gram matrix falls through both bounds to 1: the kernel reports it.
    return 1.0 + 0.4 * min(overlap, 1.0) if overlap > 0 else 1.0
