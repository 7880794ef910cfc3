"""What every kernel is told besides the problem, and what a kernel is."""

from collections.abc import Callable
from typing import NamedTuple

from torchscn.problem import Problem, Result

__all__ = ["SweepRule", "Sweeps"]


class SweepRule(NamedTuple):
    """How to sweep, and when to stop."""

    tol: float  # a signal is done when no code changes by more than tol times its largest; 0 runs all max_iter sweeps
    max_iter: int  # cap on the sweeps
    by_block: bool  # a kernel may judge neighbouring signals as a whole, by the error that is left


Sweeps = Callable[[Problem, SweepRule], Result]
"""A kernel: Gauss-Seidel sweeps over the atoms."""
