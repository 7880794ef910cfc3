"""JSON files that are read back: what is wrong with one is said in a sentence that names it. Works without torch."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["find_misfit", "read_table"]

Shape = Any
"""What a value must be: a type, a list of one shape, or a table of shapes by name (optional ones end in ``?``)."""

_LARGEST = 1e15  # numbers beyond are mistakes, and cannot be printed with a few digits


def read_table(path: Path, shape: Shape = None) -> dict[str, Any]:
    """The table of values in a JSON file.

    Args:
        path: the file.
        shape: what it must hold at least; None: anything. ``float`` means a finite number, ``object`` any value.

    Raises:
        ValueError: the file cannot be read, or holds something else.
    """
    try:
        table = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable JSON: {error}") from error
    problem = find_misfit(table, shape or {})
    if problem is not None:
        raise ValueError(f"{path} is not what it should be: {problem}.")
    assert isinstance(table, dict)
    return table


def find_misfit(value: object, shape: Shape, name: str = "its content") -> str | None:
    """Where a value differs from its shape, if anywhere.

    Example:
        >>> find_misfit({"rows": [{"n": 1}, {"n": "two"}]}, {"rows": [{"n": float}], "note?": str})
        "'rows', entry 2, 'n' must be a number"
    """
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{name} must be a table of values"
        prefix = "" if name == "its content" else f"{name}, "
        return _first(_entry_misfit(value, key, one, prefix) for key, one in shape.items())
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{name} must be a list"
        return _first(find_misfit(entry, shape[0], f"{name}, entry {n}") for n, entry in enumerate(value, 1))
    return None if _is_of(value, shape) else f"{name} must be {_READABLE[shape]}"


def _entry_misfit(table: dict[str, Any], key: str, shape: Shape, prefix: str) -> str | None:
    name = key.removesuffix("?")
    if name in table:
        return find_misfit(table[name], shape, f"{prefix}{name!r}")
    return None if key.endswith("?") else f"{prefix}{name!r} is missing"


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


_READABLE = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _is_of(value: object, kind: type) -> bool:
    if kind in (int, float):  # True and False count as numbers in Python, but not here
        kinds = (int,) if kind is int else (int, float)
        return type(value) in kinds and abs(value) < _LARGEST  # type: ignore[arg-type]
    return isinstance(value, kind)
