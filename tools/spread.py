"""Means over seeds with their standard errors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

__all__ = ["Spread", "summarize"]


@dataclass(frozen=True)
class Spread:
    """A mean over seeds; the standard error is None for fewer than two."""

    mean: float
    error: float | None
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.error is None else f"{self.mean:.2f} ± {self.error:.2f}"


def summarize(values: Sequence[float]) -> Spread:
    """Mean and standard error.

    Example:
        >>> str(summarize([1.0, 2.0, 3.0]))
        '2.00 ± 0.58'
    """
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Spread(fmean(values), error, len(values))
