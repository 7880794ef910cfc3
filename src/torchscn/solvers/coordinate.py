"""Cyclic coordinate descent (Gauss-Seidel) with over-relaxation: the fastest solver where a kernel sweeps."""

from torchscn.kernels import sweeps_for
from torchscn.options import Options
from torchscn.problem import Problem, Result
from torchscn.solvers.iterate import sweep_rule
from torchscn.solvers.registry import register_solver

__all__ = ["coordinate"]


@register_solver("coordinate")
def coordinate(problem: Problem, options: Options) -> Result:
    """Update one atom at a time, over all signals at once, until the codes settle.

    CPU tensors go to the compiled kernel if there is one, CUDA tensors to the Triton kernels. At most 1,000 sweeps
    unless ``max_iter`` says otherwise.

    References:
        Projected successive over-relaxation: O. L. Mangasarian, Solution of symmetric linear complementarity problems
        by iterative methods, J. Optimization Theory and Applications 22 (1977).
    """
    if not problem.constraint.is_separable:
        raise ValueError(
            f"solver='coordinate' cannot update codes under the constraint {problem.constraint.kind!r} one at a time; "
            "use solver='auto'."
        )
    return sweeps_for(problem)(problem, sweep_rule(problem, options))
