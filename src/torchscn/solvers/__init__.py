"""Solvers of the normal form: one method a file, one signature, chosen by name."""

from torchscn.solvers.active_set import active_set
from torchscn.solvers.auto import auto
from torchscn.solvers.base import QuadraticProgram, Result, Solution, Solver, registry
from torchscn.solvers.coordinate import coordinate
from torchscn.solvers.fista import fista

__all__ = [
    "QuadraticProgram",
    "Result",
    "Solution",
    "Solver",
    "active_set",
    "auto",
    "coordinate",
    "fista",
    "get_solver",
    "list_solvers",
]


def list_solvers() -> list[str]:
    """Names usable as ``solver=``; every one converges to the optimum.

    Example:
        >>> list_solvers()
        ['active_set', 'auto', 'coordinate', 'fista']
    """
    return sorted(registry)


def get_solver(name: str) -> Solver:
    """The solver of that name."""
    return registry[name]
