"""The error of this package, and the checks its modules share."""

import difflib
from collections.abc import Iterable

__all__ = ["DataError", "check_choice", "check_count"]


class DataError(ValueError):
    """Data that is not available, or not what it should be.

    The message names the file or folder and says what was expected, what was found, and what to do.

    Example:
        >>> issubclass(DataError, ValueError)
        True
    """


def check_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """Check that ``value`` is one of ``choices``; the error suggests the closest one."""
    choices = list(choices)
    if value in choices:
        return
    near = difflib.get_close_matches(value, choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise DataError(f"{what} {value!r} is not known; choose from {', '.join(map(repr, choices))}.{hint}")


def check_count(what: str, value: int, at_least: int) -> None:
    """Check that ``value`` is a whole number and not below ``at_least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be a whole number, at least {at_least}; got {value!r} ({type(value).__name__}).")
    if value < at_least:
        raise ValueError(f"{what} must be a whole number, at least {at_least}; got {value}.")
