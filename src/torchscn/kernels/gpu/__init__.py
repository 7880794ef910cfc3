"""Triton kernels for CUDA devices: when they can be used. Works without Triton, which only :mod:`.launch` needs.

``small.py`` and ``blocks.py`` sweep over up to 16 atoms and over more, ``finish.py`` takes exact steps where sweeps
would crawl, ``rows.py`` and ``columns.py`` hold what they share, and ``gram.py`` and ``prepare.py`` make the Gram
matrix ready.
"""

import functools
import os
import re
import warnings
from importlib import metadata

import torch
from torch import Tensor

from torchscn.kernels.choice import wanted_kernel
from torchscn.kernels.rule import Sweeps
from torchscn.problem import Problem

__all__ = ["MOST_ATOMS", "gpu_kernel", "triton_sweeps_for", "triton_version", "why_no_triton"]

MOST_ATOMS = 512
"""Atoms up to which the kernels were compiled and checked."""

_PACKAGES = ("triton", "pytorch-triton", "triton-windows")  # all of them bring the module
_OLDEST = (3, 3)  # the first Triton with tuples
_OLDEST_DEVICE = (8, 0)
_CONSTRAINTS = ("non_negative", "on_support", "bounds")


def triton_sweeps_for(problem: Problem) -> Sweeps | None:
    """The Triton kernels, if they solve problems like this one here and ``TORCHSCN_KERNEL`` does not forbid it.

    Raises:
        RuntimeError: ``TORCHSCN_KERNEL=triton`` where they cannot run.
    """
    if not _is_chosen(problem.rhs) or problem.gram.dim() == 3 or problem.constraint.kind not in _CONSTRAINTS:
        return None
    if problem.rhs.dtype != torch.float32:
        _say_once(f"solve in float32, not in {str(problem.rhs.dtype).removeprefix('torch.')}")
        return None
    if problem.rhs.shape[1] > MOST_ATOMS:
        _say_once(f"take at most {MOST_ATOMS} atoms, not {problem.rhs.shape[1]:,}")
        return None
    from torchscn.kernels.gpu.launch import triton_sweeps

    return triton_sweeps


def gpu_kernel() -> str:
    """The kernel CUDA tensors are solved with: ``triton``, or ``torch`` where that cannot be used or is not wanted.

    Raises:
        ValueError: ``TORCHSCN_KERNEL`` names no kernel.
        RuntimeError: ``TORCHSCN_KERNEL=triton`` where it cannot run.

    Example:
        >>> gpu_kernel() in ("triton", "torch")
        True
    """
    wanted = wanted_kernel()
    if wanted == "triton" and why_no_triton():
        raise RuntimeError(f"TORCHSCN_KERNEL='triton' is not available here: {why_no_triton()}.")
    return "torch" if wanted == "torch" or why_no_triton() else "triton"


@functools.cache
def why_no_triton() -> str:
    """Why CUDA tensors cannot be solved by the Triton kernels in this installation; empty if they can."""
    version = triton_version()
    if version is None:
        return "Triton is not installed (pip install 'torchscn[gpu]')"
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST:
        return f"Triton {version} is too old, {'.'.join(map(str, _OLDEST))} or newer is needed"
    if torch.version.hip is not None:
        # Stores of a sweep may not be visible to other waves; nobody has tried.
        return "the kernels were not tried on AMD devices"
    return ""


def triton_version() -> str | None:
    """The version of Triton, None if it is not installed."""
    return next(filter(None, map(_version, _PACKAGES)), None)


def _version(package: str) -> str | None:
    """The version of a package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _is_chosen(rhs: Tensor) -> bool:
    """Whether the kernels are what tensors like this one are to be solved with."""
    if rhs.is_cuda:
        chosen = gpu_kernel() == "triton" and _is_new_enough(rhs.device)
        if not chosen and wanted_kernel() == "triton":
            raise RuntimeError(f"TORCHSCN_KERNEL='triton' is not available here: {_needs_newer(rhs.device)}.")
        return chosen
    if not rhs.is_cpu or wanted_kernel() != "triton":
        return False
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(
            "TORCHSCN_KERNEL='triton' solves CUDA tensors, but these are on the CPU; unset it. (To try the kernels "
            "without a GPU, slowly, set TRITON_INTERPRET=1 before Python starts.)"
        )
    return gpu_kernel() == "triton"


@functools.cache
def _is_new_enough(device: torch.device) -> bool:
    """Whether a device can multiply in TF32; without, the kernels would spill their registers."""
    capability = torch.cuda.get_device_capability(device)
    if capability < _OLDEST_DEVICE:
        _say_once(_needs_newer(device))
    return capability >= _OLDEST_DEVICE


def _needs_newer(device: torch.device) -> str:
    return f"need compute capability 8.0, which {torch.cuda.get_device_name(device)} does not have"


@functools.cache
def _say_once(reason: str) -> None:
    warnings.warn(
        f"The Triton kernels {reason}; plain torch, which is slower, stands in for them.", RuntimeWarning, stacklevel=2
    )
