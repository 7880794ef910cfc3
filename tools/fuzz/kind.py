"""A kind of file that the product reads back: a good one, ways to damage it, and what may then happen."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tools.fuzz.mutations import Mutation

__all__ = ["Check", "Kind"]


@dataclass(frozen=True)
class Check:
    """Reads a damaged file back, and raises if something happens that must not."""

    read: Callable[[bytes], None]
    every: int = 1  # slow ones are for a sample: each so many cases


@dataclass(frozen=True)
class Kind:
    """Files of one kind."""

    title: str
    good: bytes
    mutate: Callable[[bytes, random.Random], Mutation]
    checks: tuple[Check, ...]
