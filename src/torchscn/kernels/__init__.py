"""Kernels that sweep over the atoms: for the CPU (``cpu/``, C++), for CUDA (``gpu/``, Triton), or in plain torch."""

from torchscn.constraints import SumTo
from torchscn.kernels.choice import KERNELS, wanted_kernel
from torchscn.kernels.conditioning import Conditioning, StepLimit
from torchscn.kernels.cpu import COMPILED_CONSTRAINTS, active_kernel, available_kernels, compiled_sweeps, cpu_kernel
from torchscn.kernels.gpu import gpu_kernel, triton_sweeps_for
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
    "gpu_kernel",
    "has_own_sweeps",
    "sweeps_for",
]


def sweeps_for(problem: Problem) -> Sweeps:
    """The fastest kernel for a problem; kernels for other devices are entered here.

    Raises:
        ValueError, RuntimeError: as :func:`active_kernel` and :func:`gpu_kernel`.
    """
    wanted = wanted_kernel()
    if problem.rhs.is_cuda or wanted == "triton":
        on_gpu = triton_sweeps_for(problem)
        if on_gpu is not None:
            return on_gpu
    one_by_one = problem.gram.dim() == 3 or isinstance(problem.constraint, SumTo)
    in_torch = torch_active_set if one_by_one else torch_sweeps
    if not problem.rhs.is_cpu or problem.constraint.kind not in COMPILED_CONSTRAINTS:
        return in_torch
    kernel = cpu_kernel(wanted)
    return in_torch if kernel == "torch" else compiled_sweeps(kernel)


def has_own_sweeps(problem: Problem) -> bool:
    """Whether sweeps are the fastest method for a problem: on a CPU, and where a kernel for its device takes it."""
    return problem.rhs.is_cpu or triton_sweeps_for(problem) is not None
