"""What the command line says when something is wrong. Imports nothing slow, because it is needed from the start."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torchscn.checks import printable

__all__ = ["as_typed", "complain", "naming_flags"]


def complain(message: object) -> None:
    """Print a message to stderr; names in it may hold anything."""
    lines = map(printable, str(message).split("\n"))
    print("scn: " + "\n".join(lines), file=sys.stderr)


@contextmanager
def naming_flags(*names: str) -> Iterator[None]:
    """Errors of what is called inside name these arguments as they are typed: ``--max-iter``, not ``max_iter``."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(as_typed(str(error), names)) from error


def as_typed(message: str, names: Iterable[str]) -> str:
    """The message of a library error with the arguments named as they are typed on the command line.

    A name is often an ordinary word as well (data, order), so it only counts with a value or where a sentence about it
    starts; names with an underscore count everywhere, except inside a path.

    Example:
        >>> as_typed("epochs must be at least 1; got 0.", ["epochs"])
        '--epochs must be at least 1; got 0.'
        >>> as_typed("Pass data_dir=..., not a data folder.", ["data", "data_dir"])
        'Pass --data-dir DIR, not a data folder.'
        >>> as_typed("there is no setting 'lrr'. Did you mean 'lr'?", [])
        'there is no setting --lrr. Did you mean --lr?'
    """
    unknown = re.match(r"there is no (?:setting|option) '([^']*)'\.(?: Did you mean '(\w+)'\?)?", message)
    if unknown:
        hint = f" Did you mean {_flag(unknown[2])}?" if unknown[2] else ""
        return f"there is no setting {_flag(unknown[1])}.{hint}{message[unknown.end() :]}"
    for name in sorted(names, key=len, reverse=True):
        word = rf"(?<![\w/.\-]){name}"
        placeholder = name.split("_")[-1].upper()
        message = re.sub(rf"{word}=\.\.\.", f"{_flag(name)} {placeholder}", message)
        message = re.sub(rf"{word}=", f"{_flag(name)} ", message)
        message = re.sub(rf"^{name}(?= (?:must|takes|needs) )", _flag(name), message)
        if "_" in name:
            message = re.sub(rf"{word}(?!\.?\w|[/\-])", _flag(name), message)
    return message


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
