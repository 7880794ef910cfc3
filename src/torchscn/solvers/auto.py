"""The solver for people who do not want to choose one."""

import torch

from torchscn.options import Options
from torchscn.problem import Problem, Result
from torchscn.solvers.active_set import active_set, can_finish
from torchscn.solvers.coordinate import coordinate
from torchscn.solvers.fista import fista
from torchscn.solvers.registry import register_solver

__all__ = ["auto"]


@register_solver("auto")
def auto(problem: Problem, options: Options) -> Result:
    """Coordinate descent on a CPU, FISTA elsewhere.

    On a CPU, signals too ill-conditioned for 1,000 sweeps are finished by the exact solver, unless ``max_iter`` is
    given: then it caps the sweeps and the rest is reported as not converged. A problem that is solved in place cannot
    be finished this way, because its right-hand side is overwritten.
    """
    if problem.rhs.device.type != "cpu":
        return fista(problem, options)
    result = coordinate(problem, options)
    if options.max_iter is not None or problem.in_place or not can_finish(problem) or bool(result.converged.all()):
        return result
    unfinished = (~result.converged & torch.isfinite(result.codes).all(-1)).nonzero().squeeze(-1)
    start = result.codes[unfinished] if problem.affine is None else None
    exact = active_set(problem.take(unfinished, init=start), options)
    better = unfinished[exact.converged]
    result.codes[better] = problem.finish(exact.codes[exact.converged])
    result.converged[better] = True
    return result
