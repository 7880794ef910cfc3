"""What every entry point requires of its tensors: dtype, device and shape, and how autocast is handled."""

import contextlib
import math
from typing import Any

import torch
from torch import Tensor

from torchscn.checks import check_number

__all__ = [
    "as_rows",
    "check_init",
    "check_penalty",
    "check_same_kind",
    "check_tensor",
    "full_precision",
    "is_readable",
    "is_transformed",
    "laid_out",
    "no_autocast",
]

_DTYPES = (torch.float32, torch.float64)
_HALF = (torch.float16, torch.bfloat16)


def check_tensor(what: str, value: Any) -> None:
    """Check that ``value`` is a float32 or float64 tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must be a torch.Tensor; got {type(value).__name__}. Use torch.as_tensor(...).")
    if value.dtype not in _DTYPES:
        hint = (
            "Half precision is computed in float32 under torch.autocast; otherwise convert with .float()."
            if value.dtype.is_floating_point
            else "Convert it with .float()."
        )
        raise TypeError(f"{what} must be float32 or float64; got {str(value.dtype).removeprefix('torch.')}. {hint}")


def check_same_kind(what: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """Check that both tensors have the same dtype and device."""
    if value.dtype != other.dtype:
        raise TypeError(
            f"{what} is {value.dtype} but {other_name} is {other.dtype}; convert one of them, "
            f"for example {what}.to({other_name}.dtype)."
        )
    if value.device != other.device:
        raise ValueError(
            f"{what} is on {value.device} but {other_name} is on {other.device}; move one of them, "
            f"for example {what}.to({other_name}.device)."
        )


def check_penalty(what: str, value: Any, like: Tensor, n_atoms: int | None) -> None:
    """Check a penalty: a number of at least 0, a scalar tensor or, if ``n_atoms`` is given, one per atom or code."""
    if not isinstance(value, Tensor):
        return check_number(what, value, at_least=0)
    check_tensor(what, value)
    check_same_kind(what, value, "the dictionary", like)
    shapes = [(), (1,)] + ([] if n_atoms is None else [(n_atoms,)])
    per_code = n_atoms is not None and value.dim() > 1 and value.shape[-1] in (1, n_atoms)
    if tuple(value.shape) not in shapes and not per_code:
        expected = (
            "a single number"
            if n_atoms is None
            else f"a single number, one per atom, shape ({n_atoms},), or one per signal, shape (..., 1)"
        )
        raise ValueError(f"{what} must be {expected}; got shape {tuple(value.shape)}.")
    # A negative weight of the squares takes the objective's bound away; one per atom only shifts it.
    if n_atoms is None and is_readable(value) and bool((value < 0).any()):
        raise ValueError(f"{what} must be at least 0; got {float(value.min())}.")
    return None


def is_readable(value: Tensor) -> bool:
    """Whether its numbers can be looked at right away: not on another device, traced or transformed."""
    return (
        value.is_cpu
        and type(value) in (Tensor, torch.nn.Parameter)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
    )


def check_init(init: Any, like: Tensor) -> None:
    """Check that the codes to start from have the dtype, device and shape of ``like``."""
    check_tensor("init", init)
    check_same_kind("init", init, "the problem", like)
    if init.shape != like.shape:
        raise ValueError(f"init must have the shape of the codes, {tuple(like.shape)}; got {tuple(init.shape)}.")


def as_rows(values: Tensor) -> Tensor:
    """``(..., n)`` as ``(n_signals, n)``; no size is inferred, which would fail for an empty batch."""
    return values if values.dim() == 2 else values.reshape(math.prod(values.shape[:-1]), values.shape[-1])


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode differentiation is active."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def laid_out(x: Tensor, memory_format: torch.memory_format) -> Tensor:
    """``x`` in a memory format; unchanged inside transforms of ``torch.func``, which do not support formats."""
    return x if torch._C._are_functorch_transforms_active() else x.contiguous(memory_format=memory_format)


def full_precision(*values: Any) -> tuple[Any, ...]:
    """Under autocast, half-precision tensors as float32: codes depend on signs, which half precision blurs."""
    if not _autocast_active(*values):
        return values
    return tuple(v.float() if isinstance(v, Tensor) and v.dtype in _HALF else v for v in values)


def no_autocast(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Context in which autocast does not lower the precision of products."""
    if not _autocast_active(x):
        return contextlib.nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def _autocast_active(*values: Any) -> bool:
    kinds = {v.device.type for v in values if isinstance(v, Tensor)}
    return any(torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind) for kind in kinds)
