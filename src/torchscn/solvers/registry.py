"""Solvers by name."""

from collections.abc import Callable

from torchscn.checks import Registry
from torchscn.options import Options
from torchscn.problem import Problem, Result

__all__ = ["SOLVERS", "Solver", "list_solvers", "register_solver"]

Solver = Callable[[Problem, Options], Result]
"""Solves a problem to ``options.tol`` within ``options.max_iter`` iterations (None: the solver's own cap)."""

SOLVERS: Registry[Solver] = Registry("solver")


def register_solver(name: str) -> Callable[[Solver], Solver]:
    """Decorator: make a solver usable as ``solver=name`` everywhere.

    It must converge to the optimum of the problem it is given, or report in ``converged`` where it did not.

    Example:
        >>> @register_solver("scaled")
        ... def scaled(problem, options):
        ...     '''Exact where atoms are orthogonal.'''
        ...     codes = (problem.linear() / problem.gram.diagonal()).relu()
        ...     return Result(codes, problem.residual(codes) <= options.tol, 1, 1.0)
        >>> _ = SOLVERS.pop("scaled")
    """
    return SOLVERS.register(name)


def list_solvers() -> list[str]:
    """Names usable as ``solver=``; every one converges to the optimum.

    Example:
        >>> list_solvers()
        ['active_set', 'auto', 'coordinate', 'fista']
    """
    return sorted(SOLVERS)
