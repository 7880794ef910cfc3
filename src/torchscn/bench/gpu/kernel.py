"""The kernel under test: chosen for a while, and tried once before anything relies on it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torchscn.functional import solve

__all__ = ["describe_error", "find_kernel_problem", "kernel_in_force"]

_VARIABLE = "TORCHSCN_KERNEL"
_LONGEST = 300  # characters of an error; compilers write pages


@contextmanager
def kernel_in_force(name: str) -> Iterator[None]:
    """Everything inside is solved by the kernel of this name."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def find_kernel_problem(kernel: str, device: torch.device) -> str | None:
    """Why a kernel cannot be used on the device, or None if it can."""
    x, dictionary = torch.ones(3, 4, device=device), torch.eye(2, 4, device=device)
    try:
        with kernel_in_force(kernel):
            solve(x, dictionary, solver="coordinate").codes.cpu()
    # A missing package, a missing C compiler, an old device: Triton raises errors of many classes.
    except Exception as error:
        return describe_error(error)
    return None


def describe_error(error: Exception) -> str:
    """An error in one line.

    Example:
        >>> describe_error(ValueError("no such thing\\nas this"))
        'ValueError: no such thing as this'
    """
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
