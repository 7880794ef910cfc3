"""The fields of a request, each checked before it is used: what arrives may come from anywhere."""

import base64
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Fields", "RequestError", "pack"]


class RequestError(ValueError):
    """A request that cannot be answered; the message says in one sentence what is wrong with it."""


class Fields:
    """A request, an object of named values.

    Args:
        request: what came, decoded from JSON.
        known: the names that may occur; another one is an error.

    Example:
        >>> fields = Fields({"layer": 3}, ["layer", "tol"])
        >>> fields.whole("layer", 1, 14), fields.number("tol", 0, 1)
        (3, None)
        >>> fields.whole("layer", 1, 2)
        Traceback (most recent call last):
        torchscn.explore.fields.RequestError: layer must be a whole number from 1 to 2; got 3.
    """

    def __init__(self, request: object, known: Iterable[str]):
        if not isinstance(request, Mapping):
            raise RequestError(f"a request must be an object with named fields; got {type(request).__name__}.")
        known = tuple(known)
        unknown = [name for name in request if name not in known]
        if unknown:
            raise RequestError(f"there is no field {reprlib.repr(unknown[0])}; there are {', '.join(known)}.")
        self._values: Mapping[str, Any] = request

    def has(self, name: str) -> bool:
        """Whether the field has a value; null counts as none."""
        return self._values.get(name) is not None

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number within bounds, or None if there is none."""
        value = self._values.get(name)
        if value is None:
            return None
        # A comparison also sorts out NaN, and whole numbers too large for a float.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise RequestError(f"{name} must be a number from {low:g} to {high:g}; got {reprlib.repr(value)}.")
        return float(value)

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number within bounds, or None if there is none."""
        value = self._values.get(name)
        if value is None:
            return None
        return _check_whole(name, value, low, high)

    def wholes(self, name: str, low: int, high: int, most: int) -> list[int]:
        """A list of whole numbers within bounds, not longer than ``most``."""
        values = self._values.get(name)
        if not isinstance(values, list) or len(values) > most:
            raise RequestError(f"{name} must be a list of at most {most} whole numbers.")
        return [_check_whole(name, value, low, high) for value in values]

    def image(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Pixels of a shape, 8 bits each, from base64."""
        value = self._values.get(name)
        if not isinstance(value, str):
            raise RequestError(f"{name} must be text, pixels in base64; got {type(value).__name__}.")
        try:
            content = base64.b64decode(value, validate=True)
        except ValueError:
            raise RequestError(f"{name} is not valid base64.") from None
        expected = int(np.prod(shape))
        if len(content) != expected:
            sides = " x ".join(map(str, shape))
            raise RequestError(f"{name} must hold {expected} bytes, {sides} pixels; got {len(content)}.")
        return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(shape)


def _check_whole(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name} must be a whole number from {low} to {high}; got {reprlib.repr(value)}.")
    return value


def pack(values: Tensor) -> str:
    """Bytes, or other numbers as float32 (the smallest byte first), in base64.

    Example:
        >>> pack(torch.tensor([1, 2], dtype=torch.uint8))
        'AQI='
    """
    array = values.detach().contiguous().numpy()
    array = array if array.dtype == np.uint8 else array.astype("<f4")
    return base64.b64encode(array.tobytes()).decode()
