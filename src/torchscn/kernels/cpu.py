"""Find the compiled kernel, choose its instruction set and call it on tensors."""

import ctypes
import functools
import os
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["KERNELS", "active_kernel", "available_kernels", "compiled_sweeps"]

_ISAS = ("generic", "avx2", "avx512")  # in the order of library.cpp
KERNELS = ("torch", *_ISAS)
"""Every kernel ``TORCHSCN_KERNEL`` can name besides ``auto``."""

_NUMBER_TYPES = {torch.float32: "scn_solve_float32", torch.float64: "scn_solve_float64"}


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The compiled kernel, or None where the install could not build it."""
    path = Path(__file__).with_name("_cpu.so")
    if not path.exists():
        return None
    library = ctypes.CDLL(str(path))
    pointer, number, count = ctypes.c_void_p, ctypes.c_double, ctypes.c_int64
    library.scn_use_openmp.argtypes = [pointer]
    for name in _NUMBER_TYPES.values():
        getattr(library, name).argtypes = [
            *[ctypes.c_int] * 2,
            *[pointer] * 9,
            *[count] * 2,
            *[number] * 3,
            *[ctypes.c_int] * 2,
            ctypes.POINTER(count),
        ]
    library.scn_use_openmp(_torch_openmp())
    return library


def _torch_openmp() -> ctypes.c_void_p | None:
    """GOMP_parallel of the OpenMP runtime torch runs on.

    Sharing its pool matters: idle OpenMP workers spin for a while, and a second pool would compete with them for cores.
    """
    try:
        torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(torch_cpu.GOMP_parallel, ctypes.c_void_p)
    except (OSError, AttributeError):
        return None


def available_kernels() -> tuple[str, ...]:
    """The kernels this machine can run, slowest first.

    Example:
        >>> "torch" in available_kernels()
        True
    """
    library = _library()
    return ("torch",) if library is None else KERNELS[: library.scn_best_isa() + 2]


def active_kernel() -> str:
    """The kernel CPU tensors are solved with: the best available, or the one ``TORCHSCN_KERNEL`` names.

    Raises:
        ValueError: ``TORCHSCN_KERNEL`` names no kernel.
        RuntimeError: it names one that this install or processor lacks.

    Example:
        >>> active_kernel() in available_kernels()
        True
    """
    wanted = os.environ.get("TORCHSCN_KERNEL") or "auto"
    available = available_kernels()
    if wanted == "auto":
        return available[-1]
    if wanted not in KERNELS:
        raise ValueError(f"TORCHSCN_KERNEL={wanted!r} is not a kernel. Use auto, {', '.join(KERNELS)}, or unset it.")
    if wanted not in available:
        reason = "the processor does not run it" if len(available) > 1 else "the install found no C++ compiler"
        raise RuntimeError(
            f"TORCHSCN_KERNEL={wanted!r} is not available here: {reason}. Available: {', '.join(available)}."
        )
    return wanted


def compiled_sweeps(
    kernel: str,
    rhs: Tensor,
    gram: Tensor,
    *,
    shift: Tensor | None,
    init: Tensor | None,
    support: Tensor | None,
    tol: float,
    max_iter: int,
    relax: float,
    ridge: float,
    as_block: bool,
    in_place: bool = False,
    affine: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, int, float]:
    """Gauss-Seidel sweeps in the compiled kernel; same contract as :func:`torchscn.kernels.torch_sweeps`, and more.

    Args:
        as_block: judge a block of up to 64 neighbouring signals as a whole: it is done when the error left, estimated
            from how fast the changes shrink, is below ``tol`` times its largest code.
        in_place: write over ``rhs``, which must be contiguous.
        affine: scale and offset, one per atom: return ``codes * scale + offset``.
    """
    library = _library()
    assert library is not None
    rhs, gram = rhs.detach().contiguous(), gram.detach().contiguous()
    shift, init, support = (None if t is None else t.detach().contiguous() for t in (shift, init, support))
    n_signals, n_atoms = rhs.shape
    codes = rhs if in_place else torch.empty_like(rhs)
    scale, offset = affine or (None, None)
    converged = torch.empty(n_signals, dtype=torch.bool)
    sweeps = (ctypes.c_int64 * 2)()
    failed = getattr(library, _NUMBER_TYPES[rhs.dtype])(
        _ISAS.index(kernel),
        torch.get_num_threads(),
        *(
            None if t is None else t.data_ptr()
            for t in (rhs, shift, gram, init, support, codes, converged, scale, offset)
        ),
        n_signals,
        n_atoms,
        tol,
        relax,
        ridge,
        min(max_iter, 2**31 - 1),
        as_block,
        sweeps,
    )
    if failed:
        raise MemoryError(f"the CPU kernel could not allocate its scratch memory for {n_atoms} atoms")
    most, total = sweeps
    return codes, converged, most, total / max(n_signals, 1)
