"""Solvers of the normal form: one method per file, one signature, chosen by name."""

from torchscn.solvers.active_set import active_set
from torchscn.solvers.auto import auto
from torchscn.solvers.coordinate import coordinate
from torchscn.solvers.fista import fista
from torchscn.solvers.registry import SOLVERS, Solver, list_solvers, register_solver

__all__ = ["SOLVERS", "Solver", "active_set", "auto", "coordinate", "fista", "list_solvers", "register_solver"]
