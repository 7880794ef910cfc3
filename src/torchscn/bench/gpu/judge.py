"""What a check finds, and how it is judged: accuracy, convergence, and two runs that must agree to the last bit."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchscn.bench.gpu.kernel import kernel_in_force

__all__ = ["PROMISE", "Check", "are_bit_equal", "full_precision", "judge", "largest_error", "run_twice"]

T = TypeVar("T")

PROMISE = 10.0
"""The largest error of a code that is called converged, in units of the tolerance."""

_NEIGHBOURS = 64  # signals that a kernel may judge as a whole at most
_SMALLEST = 1e-12  # sweeps from a warm start come close to zero codes, but need not reach them


@dataclass(frozen=True)
class Check:
    """What came of a check."""

    name: str
    kernel: str
    error: float | None = None  # largest relative error of what converged, in units of the tolerance
    converged: bool | None = None  # whether all signals did that can; gradients do not tell
    bit_equal: bool | None = None  # whether two runs gave the same
    problem: str | None = None  # what is wrong, if anything

    @property
    def passed(self) -> bool:
        return self.problem is None

    def as_row(self) -> dict[str, Any]:
        """Plain values for a file, without what is not known."""
        return {name: value for name, value in asdict(self).items() if value is not None} | {"passed": self.passed}


def judge(check: Check, error: float, *other_problems: str | None) -> Check:
    """The check with its error, in units of the tolerance, and everything that is wrong."""
    problems = (_describe_inaccuracy(error), None if check.bit_equal else "two runs differ", *other_problems)
    described = "; ".join(problem for problem in problems if problem) or None
    known = error if math.isfinite(error) else None  # files hold no infinity
    return Check(check.name, check.kernel, known, check.converged, check.bit_equal, described)


def _describe_inaccuracy(error: float) -> str | None:
    if error <= PROMISE:
        return None
    how_much = f"{error:.3g} times the tolerance" if math.isfinite(error) else "more than any number"
    return f"off by {how_much}, {PROMISE:g} are promised"


def largest_error(found: Tensor, exact: Tensor, by_block: bool = False) -> float:
    """The largest relative error of a row, or, by block, of neighbouring rows taken together; infinite for NaN."""
    errors, sizes = (found - exact).square().sum(-1), exact.square().sum(-1)
    if by_block:
        errors, sizes = (torch.stack([part.sum() for part in each.split(_NEIGHBOURS)]) for each in (errors, sizes))
    relative = errors.sqrt() / sizes.sqrt().clamp(min=_SMALLEST)
    return float(relative.nan_to_num(math.inf, math.inf).amax()) if len(relative) else 0.0


def run_twice(run: Callable[[], T], kernel: str, like: Tensor) -> tuple[T, T]:
    """Two results; the memory each run is given holds other numbers before, which it must not read."""

    def run_over(litter: float) -> T:
        leftovers = [torch.full_like(like, litter) for _ in range(3)]
        del leftovers  # torch hands this memory out again
        return run()

    with kernel_in_force(kernel):
        return run_over(1e30), run_over(math.nan)


def are_bit_equal(one: Tensor, other: Tensor) -> bool:
    """Whether all numbers are the same to the last bit; NaN equals NaN."""
    numbers = (tensor.contiguous().view(torch.int32) for tensor in (one, other))
    return torch.equal(*numbers)


@contextmanager
def full_precision() -> Iterator[None]:
    """Products, convolutions and sums around a kernel are computed in float32, and always in the same order."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
