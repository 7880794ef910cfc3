"""The checked border to the compiled kernel: load it, choose its instruction set, call it on tensors."""

import ctypes
import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchscn.constraints import Bounds, Constraint, OnSupport, SumTo
from torchscn.kernels.choice import wanted_kernel
from torchscn.kernels.rule import NOT_CONVEX, SweepRule, Sweeps, VanishingAtomError
from torchscn.problem import Problem, Result

__all__ = ["COMPILED_CONSTRAINTS", "active_kernel", "available_kernels", "compiled_sweeps", "cpu_kernel"]

# The numbers of call.h.
_INTERFACE_VERSION = 4
_NUMBERS = {torch.float32: 0, torch.float64: 1}
_ISAS = ("generic", "avx2", "avx512")
COMPILED_CONSTRAINTS = {"non_negative": 0, "on_support": 1, "bounds": 2, "sum_to": 3}
_FAILURES = {  # by what scn_solve returns
    1: (MemoryError, "there is no memory for its scratch space"),
    2: (RuntimeError, "it does not know the number type, instruction set or constraint it was asked for"),
    3: (RuntimeError, "an exception of the C++ library stopped it"),
}

_NOT_CONVEX = 4
_UNBOUNDED = 5

_PATH = Path(__file__).with_name("_cpu.so")
_LARGEST_COUNT = 2**63 - 1


class _Call(ctypes.Structure):
    """ScnCall of call.h, field by field."""

    _fields_ = (
        ("interface_version", ctypes.c_int64),
        ("number", ctypes.c_int32),
        ("isa", ctypes.c_int32),
        ("constraint", ctypes.c_int32),
        ("own_bounds", ctypes.c_int32),
        ("by_block", ctypes.c_int32),
        ("finishes", ctypes.c_int32),
        ("n_threads", ctypes.c_int64),
        ("n_signals", ctypes.c_int64),
        ("n_atoms", ctypes.c_int64),
        ("n_grams", ctypes.c_int64),
        ("max_iter", ctypes.c_int64),
        ("tol", ctypes.c_double),
        ("promise", ctypes.c_double),
        ("rounding", ctypes.c_double),
        ("ridge", ctypes.c_double),
        ("rhs", ctypes.c_void_p),
        ("gram", ctypes.c_void_p),
        ("shift", ctypes.c_void_p),
        ("init", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("lower", ctypes.c_void_p),
        ("upper", ctypes.c_void_p),
        ("threshold", ctypes.c_void_p),
        ("total", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("offset", ctypes.c_void_p),
        ("codes", ctypes.c_void_p),
        ("converged", ctypes.c_void_p),
        ("most_sweeps", ctypes.c_int64),
        ("total_sweeps", ctypes.c_int64),
    )


class _Loaded(NamedTuple):
    """The compiled kernel, or why there is none."""

    library: ctypes.CDLL | None
    reason: str = ""


@functools.cache
def _loaded() -> _Loaded:
    """The compiled kernel; one that is there but of no use is warned about once."""
    if not _PATH.exists():
        return _Loaded(None, "the install found no C++ compiler")
    try:
        library = _open(_PATH)
    except OSError as error:
        warnings.warn(
            f"The compiled kernel {_PATH} is not usable ({error}); plain torch, which is slower, stands in for it. "
            "To rebuild it: pip install --force-reinstall torchscn, or in a checkout: pip install -e .",
            RuntimeWarning,
            stacklevel=2,
        )
        return _Loaded(None, f"the library {_PATH} is not usable ({error})")
    library.scn_use_openmp(_torch_openmp())
    return _Loaded(library)


def _open(path: Path) -> ctypes.CDLL:
    """The library at ``path``; OSError if it cannot be loaded or speaks another version of the interface."""
    library = ctypes.CDLL(str(path))
    try:
        library.scn_interface_version.restype = ctypes.c_int64
        version = library.scn_interface_version()
    except AttributeError:
        raise OSError("it is from a version of torchscn that does not say which interface it has") from None
    if version != _INTERFACE_VERSION:
        raise OSError(f"its interface has version {version}, this torchscn needs {_INTERFACE_VERSION}")
    library.scn_use_openmp.argtypes = [ctypes.c_void_p]
    library.scn_solve.argtypes = [ctypes.POINTER(_Call)]
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
    """The kernels this machine can run on CPU tensors, slowest first.

    Example:
        >>> "torch" in available_kernels()
        True
    """
    library = _loaded().library
    return ("torch",) if library is None else ("torch", *_ISAS)[: library.scn_best_isa() + 2]


def active_kernel() -> str:
    """The kernel CPU tensors are solved with: the best available, or the one ``TORCHSCN_KERNEL`` names.

    Raises:
        ValueError: ``TORCHSCN_KERNEL`` names no kernel.
        RuntimeError: it names one that this install or processor lacks.

    Example:
        >>> active_kernel() in available_kernels()
        True
    """
    return cpu_kernel(wanted_kernel())


@functools.cache
def cpu_kernel(wanted: str) -> str:
    """The kernel for CPU tensors if this one is wanted; see :func:`active_kernel`."""
    available = available_kernels()
    if wanted in ("auto", "triton"):  # the latter is for other devices
        return available[-1]
    if wanted not in available:
        reason = _loaded().reason or "the processor does not run it"
        raise RuntimeError(
            f"TORCHSCN_KERNEL={wanted!r} is not available here: {reason}. Available: {', '.join(available)}."
        )
    return wanted


@functools.cache
def compiled_sweeps(kernel: str) -> Sweeps:
    """The compiled sweeps for one instruction set, which must be available.

    ``by_block`` judges a block of up to 64 neighbouring signals as a whole: it is done when the error left, estimated
    from how fast the steps shrink, is below ``tol`` times the length of its codes, and none breaks the promise.
    """
    library = _loaded().library
    assert library is not None
    return functools.partial(_solve, library.scn_solve, _ISAS.index(kernel))


def _solve(scn_solve: Callable[[_Call], int], isa: int, problem: Problem, rule: SweepRule) -> Result:
    """Check what the problem is made of and hand it over."""
    if problem.affine is not None and isinstance(problem.constraint, SumTo):
        result = _solve(scn_solve, isa, replace(problem, affine=None), rule)
        return result._replace(codes=problem.finish(result.codes))
    rhs = _checked_rhs(problem.rhs)
    n_signals, n_atoms = rhs.shape
    others = _checked_others(problem, rhs.dtype, n_signals, n_atoms)  # lives until the kernel is done with its memory
    codes = rhs if problem.in_place else torch.empty_like(rhs)
    converged = torch.empty(n_signals, dtype=torch.bool, device=rhs.device)
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in (rhs, *others, codes, converged)]
    if 0 in pointers and rhs.numel():
        raise ValueError("the CPU kernel needs tensors with memory; these have none (are they fake or traced?).")
    call = _Call(
        _INTERFACE_VERSION,
        _NUMBERS[rhs.dtype],
        isa,
        COMPILED_CONSTRAINTS[problem.constraint.kind],
        _has_rows(problem.constraint),
        rule.by_block,
        rule.finishes,
        torch.get_num_threads(),
        n_signals,
        n_atoms,
        1 if problem.gram.dim() == 2 else n_signals,
        min(rule.max_iter, _LARGEST_COUNT),
        rule.tol,
        rule.promise,
        rule.rounding,
        problem.constraint.ridge(rhs.dtype),
        *pointers,
    )
    if status := scn_solve(call):
        if status == _NOT_CONVEX:
            raise ValueError(f"{NOT_CONVEX}.")
        if status == _UNBOUNDED:
            raise VanishingAtomError
        error, reason = _FAILURES[status]
        raise error(f"the CPU kernel did not solve {n_signals} problems of {n_atoms} atoms: {reason}.")
    return Result(codes, converged, call.most_sweeps, call.total_sweeps / max(n_signals, 1))


def _checked_rhs(rhs: Tensor) -> Tensor:
    """The right-hand side, contiguous (a copy where it is not, so that nobody's memory is written over)."""
    if rhs.dtype not in _NUMBERS:
        raise TypeError(f"rhs must be float32 or float64; got {_name(rhs.dtype)}.")
    if not rhs.is_cpu or rhs.ndim != 2:
        raise ValueError(f"rhs must be a matrix on the CPU; got the shape {tuple(rhs.shape)} on {rhs.device}.")
    return rhs.contiguous()


def _checked_others(problem: Problem, dtype: torch.dtype, n_signals: int, n_atoms: int) -> list[Tensor | None]:
    """The problem's other tensors in the order of the call, from gram to offset."""
    per_code, per_atom, of_one = (n_signals, n_atoms), (n_atoms,), (n_atoms, n_atoms)
    has_own = problem.gram.shape == (n_signals, *of_one)
    gram = _checked("gram", problem.gram, dtype, (n_signals, *of_one) if has_own else of_one)
    shift = None if problem.shift is None else _checked("shift", problem.shift, dtype, per_atom)
    constraint = _checked_constraint(problem.constraint, dtype, n_signals, n_atoms)
    start = scale = offset = None
    if problem.init is not None:
        # Before start() computes with it: that would stretch a wrong shape, or fail in other words.
        _checked("init", problem.init, dtype, per_code)
        # Where signals are solved one by one, there is no use for a start.
        if problem.gram.dim() == 2 and not isinstance(problem.constraint, SumTo):
            found = problem.start()
            start = None if found is None else found.contiguous()
    if problem.affine is not None:
        scale = _checked("scale", problem.affine.scale, dtype, per_atom)
        offset = _checked("offset", problem.affine.offset, dtype, per_atom)
    return [gram, shift, start, *constraint, scale, offset]


def _checked_constraint(
    constraint: Constraint, dtype: torch.dtype, n_signals: int, n_atoms: int
) -> tuple[Tensor | None, ...]:
    """The tensors of a constraint in the order of the call: mask, lower, upper, threshold, total."""
    if isinstance(constraint, OnSupport):
        return _checked("mask", constraint.mask, dtype, (n_signals, n_atoms)), None, None, None, None
    if isinstance(constraint, SumTo):
        return None, None, None, None, _checked("total", constraint.total, dtype, (n_signals, 1))
    if isinstance(constraint, Bounds):
        shape = (n_signals, n_atoms) if _has_rows(constraint) else (n_atoms,)
        bounds = (
            _checked(name, tensor.expand(shape) if tensor.dim() == 1 else tensor, dtype, shape)
            for name, tensor in vars(constraint).items()
        )
        return (None, *bounds, None)
    return (None,) * 5


def _has_rows(constraint: Constraint) -> bool:
    """Whether a tensor of the constraint has a row for every signal."""
    return any(tensor.dim() == 2 for tensor in constraint.tensors())


def _checked(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor that goes with the right-hand side, contiguous."""
    if tensor.dtype is not dtype:
        raise TypeError(f"{name} must be {_name(dtype)} like rhs; got {_name(tensor.dtype)}.")
    if not tensor.is_cpu:
        raise ValueError(f"{name} must be on the CPU like rhs; got a tensor on {tensor.device}.")
    if tensor.shape != shape:
        raise ValueError(f"{name} must have the shape {shape} to go with rhs; got {tuple(tensor.shape)}.")
    return tensor.contiguous()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
