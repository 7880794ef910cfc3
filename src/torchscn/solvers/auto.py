"""The solver for people who do not want to choose one."""

from torchscn.constraints import SumTo
from torchscn.kernels import has_own_sweeps, sweeps_for
from torchscn.options import Options
from torchscn.problem import Problem, Result
from torchscn.solvers.active_set import active_set, can_finish
from torchscn.solvers.coordinate import coordinate
from torchscn.solvers.fista import fista
from torchscn.solvers.iterate import sweep_rule
from torchscn.solvers.registry import register_solver

__all__ = ["auto"]


@register_solver("auto")
def auto(problem: Problem, options: Options) -> Result:
    """Coordinate descent where there is a kernel for it, FISTA elsewhere, finished by exact steps where either crawls.

    With ``max_iter``, which caps the iterations, there are no exact steps: what is not done then is reported as not
    converged.
    """
    if problem.gram.dim() == 3 or isinstance(problem.constraint, SumTo):
        return active_set(problem, options)
    if options.max_iter is not None or not can_finish(problem):
        one_at_a_time = has_own_sweeps(problem) and problem.constraint.is_separable
        return (coordinate if one_at_a_time else fista)(problem, options)
    if has_own_sweeps(problem):
        return sweeps_for(problem)(problem, sweep_rule(problem, options, finishes=True))
    result = fista(problem, options)
    unfinished = (~result.converged & problem.is_finite()).nonzero().squeeze(-1)
    if len(unfinished):
        start = result.codes[unfinished] if problem.affine is None else None
        exact = active_set(problem.take(unfinished, init=start), options)
        result.codes[unfinished] = problem.finish(exact.codes)
        result.converged[unfinished] = exact.converged
    return result
