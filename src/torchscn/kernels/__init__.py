"""Kernels that sweep over the atoms: compiled ones for the CPU (``cpu/``, C++), and plain torch for everything else."""

from torchscn.constraints import SumTo
from torchscn.kernels.conditioning import Conditioning, StepLimit
from torchscn.kernels.cpu import COMPILED_CONSTRAINTS, KERNELS, active_kernel, available_kernels, compiled_sweeps
from torchscn.kernels.rule import SweepRule, Sweeps, VanishingAtomError
from torchscn.kernels.search import torch_active_set
from torchscn.kernels.torch import torch_sweeps
from torchscn.problem import Problem

__all__ = [
    "KERNELS",
    "Conditioning",
    "StepLimit",
    "SweepRule",
    "Sweeps",
    "VanishingAtomError",
    "active_kernel",
    "available_kernels",
    "sweeps_for",
]


def sweeps_for(problem: Problem) -> Sweeps:
    """The fastest kernel for a problem; kernels for other devices are entered here.

    Raises:
        ValueError, RuntimeError: as :func:`active_kernel`.
    """
    one_by_one = problem.gram.dim() == 3 or isinstance(problem.constraint, SumTo)
    in_torch = torch_active_set if one_by_one else torch_sweeps
    if not problem.rhs.is_cpu or problem.constraint.kind not in COMPILED_CONSTRAINTS:
        return in_torch
    kernel = active_kernel()
    return in_torch if kernel == "torch" else compiled_sweeps(kernel)
