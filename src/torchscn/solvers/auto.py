"""The solver for people who do not want to choose one."""

import torch

from torchscn.solvers.active_set import active_set
from torchscn.solvers.base import QuadraticProgram, Result, register
from torchscn.solvers.coordinate import coordinate
from torchscn.solvers.fista import fista

__all__ = ["auto"]


@register("auto")
def auto(problem: QuadraticProgram, tol: float, max_iter: int | None = None) -> Result:
    """Coordinate descent on a CPU, FISTA elsewhere.

    On a CPU, signals too ill-conditioned for 1,000 sweeps are finished by the exact solver, unless ``max_iter`` is
    given: then it caps the sweeps and the rest is reported as not converged.
    """
    if problem.rhs.device.type != "cpu":
        return fista(problem, tol, max_iter)
    result = coordinate(problem, tol, max_iter)
    if max_iter is not None or bool(result.converged.all()):
        return result
    unfinished = (~result.converged & torch.isfinite(result.codes).all(-1)).nonzero().squeeze(-1)
    exact = active_set(problem.take(unfinished, init=result.codes[unfinished]), tol, None)
    better = unfinished[exact.converged]
    result.codes[better] = exact.codes[exact.converged]
    result.converged[better] = True
    return result
