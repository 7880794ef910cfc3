"""Ctrl-C and termination signals, noticed without losing the step at hand."""

import signal
import types
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["watch_signals"]


@contextmanager
def watch_signals() -> Iterator[list[int]]:
    """A list that fills when Ctrl-C or a termination signal arrives, so that the current step can finish."""
    received: list[int] = []

    def note(number: int, frame: types.FrameType | None) -> None:
        received.append(number)

    watched = (signal.SIGINT, signal.SIGTERM)
    try:
        before = {number: signal.signal(number, note) for number in watched}
    except ValueError:  # not in the main thread: its owner handles signals
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
