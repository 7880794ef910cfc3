"""Errors for bad input, in one style: what was expected, what was given, what to do. Works without torch."""

import difflib
import math
import numbers
import reprlib
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

__all__ = ["Registry", "check_choice", "check_number", "did_you_mean", "printable"]

T = TypeVar("T")


def check_choice(what: str, value: object, choices: Iterable[str]) -> None:
    """Check that ``value`` is one of ``choices``; the error suggests the closest one."""
    choices = list(choices)
    if value in choices:
        return
    known = ", ".join(map(repr, choices))
    # Shortened, for it may come from a damaged file.
    raise ValueError(f"{what}={reprlib.repr(value)} is not known; choose from {known}.{did_you_mean(value, choices)}")


def did_you_mean(value: object, choices: Iterable[str]) -> str:
    """The end of an error message: the choice closest to ``value``, if there is a close one.

    Example:
        >>> did_you_mean("author", ["authors", "text"])
        " Did you mean 'authors'?"
    """
    near = difflib.get_close_matches(str(value), list(choices), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def printable(text: str) -> str:
    r"""``text`` with every character that steers a terminal instead of being shown replaced by its escaped form.

    These are control characters, line separators, halves of surrogate pairs (file names that are not valid text) and
    the marks that change the direction of writing.

    Example:
        >>> print(printable("cat\x1b[31m\n"))
        cat\x1b[31m\n
    """
    return "".join(char.encode("unicode_escape").decode() if _steers(char) else char for char in text)


def _steers(char: str) -> bool:
    turns = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    return char in turns or unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")


def check_number(what: str, value: Any, *, at_least: float, whole: bool = False) -> None:
    """Check that ``value`` is a finite number (a whole one with ``whole=True``) and not below ``at_least``."""
    kinds = numbers.Integral if whole else numbers.Real  # these include NumPy's scalars
    kind = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise TypeError(f"{what} must be {kind}, at least {at_least}; got {value!r} ({type(value).__name__}).")
    if not math.isfinite(value) or value < at_least:
        raise ValueError(f"{what} must be {kind}, at least {at_least}; got {value}.")


class Registry(dict[str, T]):
    """Objects chosen by name, for example ``solver="fista"``; an unknown name is an error that lists the known ones.

    Args:
        what: the argument that takes the names, for error messages.

    Example:
        >>> colours = Registry[int]("colour")
        >>> colours.register("red")(0xFF0000)
        16711680
        >>> colours["rde"]
        Traceback (most recent call last):
        ValueError: colour='rde' is not known; choose from 'red'. Did you mean 'red'?
    """

    def __init__(self, what: str):
        super().__init__()
        self.what = what

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: register an object under ``name``."""

        def add(thing: T) -> T:
            self[name] = thing
            return thing

        return add

    def __missing__(self, name: object) -> T:
        check_choice(self.what, name, sorted(self))
        raise AssertionError("unreachable")
