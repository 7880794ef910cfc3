"""Errors for bad input, in one voice: what was expected, what came, what to do."""

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchscn.implicit import GRADIENT_RULES
from torchscn.solvers import list_solvers

__all__ = [
    "check_choice",
    "check_init",
    "check_number",
    "check_options",
    "check_same_kind",
    "check_tensor",
    "did_you_mean",
]

DTYPES = (torch.float32, torch.float64)


def check_choice(what: str, value: object, choices: Iterable[str]) -> None:
    """``value`` is one of ``choices``; a near miss is suggested."""
    choices = list(choices)
    if value in choices:
        return
    known = ", ".join(map(repr, choices))
    raise ValueError(f"{what}={value!r} is not known; choose from {known}.{did_you_mean(value, choices)}")


def did_you_mean(value: object, choices: Iterable[str]) -> str:
    """The end of an error message: the choice that ``value`` nearly is, if there is one.

    Example:
        >>> did_you_mean("author", ["authors", "text"])
        " Did you mean 'authors'?"
    """
    near = difflib.get_close_matches(str(value), list(choices), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def check_number(what: str, value: Any, *, at_least: float, whole: bool = False) -> None:
    """``value`` is a finite number (a whole one if so asked) and not below ``at_least``."""
    kinds = numbers.Integral if whole else numbers.Real  # NumPy's scalars are of these kinds too
    kind = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise TypeError(f"{what} must be {kind}, at least {at_least}; got {value!r} ({type(value).__name__}).")
    if not math.isfinite(value) or value < at_least:
        raise ValueError(f"{what} must be {kind}, at least {at_least}; got {value}.")


def check_options(solver: Any, tol: Any, max_iter: Any, grad: Any = "implicit") -> None:
    """The options every entry point shares."""
    check_choice("solver", solver, list_solvers())
    check_choice("grad", grad, GRADIENT_RULES)
    check_number("tol", tol, at_least=0)
    if max_iter is not None:
        check_number("max_iter", max_iter, at_least=1, whole=True)
    if grad == "unrolled" and solver != "fista":
        raise ValueError(f"grad='unrolled' differentiates FISTA's steps: use solver='fista' with it, not {solver!r}.")


def check_tensor(what: str, value: Any) -> None:
    """``value`` is a float32 or float64 tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must be a torch.Tensor; got {type(value).__name__}. Use torch.as_tensor(...).")
    if value.dtype not in DTYPES:
        hint = (
            "Half precision is computed in float32 under torch.autocast; otherwise convert with .float()."
            if value.dtype.is_floating_point
            else "Convert it with .float()."
        )
        raise TypeError(f"{what} must be float32 or float64; got {str(value.dtype).removeprefix('torch.')}. {hint}")


def check_same_kind(what: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """Both tensors share dtype and device."""
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
    """A penalty: a non-negative number, a scalar tensor, or (where ``n_atoms`` is given) a tensor with one per atom."""
    if not isinstance(value, Tensor):
        return check_number(what, value, at_least=0)
    check_tensor(what, value)
    check_same_kind(what, value, "the dictionary", like)
    shapes = [(), (1,)] + ([] if n_atoms is None else [(n_atoms,)])
    if tuple(value.shape) not in shapes:
        expected = "a single number" if n_atoms is None else f"a single number or one per atom, shape ({n_atoms},)"
        raise ValueError(f"{what} must be {expected}; got shape {tuple(value.shape)}.")
    return None


def check_init(init: Any, shape: tuple[int, ...], like: Tensor) -> None:
    """Codes to start from have the shape of the codes to come."""
    if init is None:
        return
    check_tensor("init", init)
    check_same_kind("init", init, "the problem", like)
    if tuple(init.shape) != tuple(shape):
        raise ValueError(f"init must have the shape of the codes, {tuple(shape)}; got {tuple(init.shape)}.")
