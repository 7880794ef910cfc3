"""Ctrl-C while modules are imported."""

import os
import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

from torchscn.cli.messages import complain

__all__ = ["STOPPED", "quick_ctrl_c", "say_stopped"]

STOPPED = 128 + signal.SIGINT  # exit code


@contextmanager
def quick_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process at once while a module is being imported, and raise KeyboardInterrupt otherwise.

    An exception in the middle of an import is not always handed on: torch ignores it while it looks for NumPy, and
    NumPy turns it into an ImportError.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # somebody else handles it, or nobody should
        yield
        return
    try:
        signal.signal(signal.SIGINT, _stop)
    except ValueError:  # not in the main thread, which gets all signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def say_stopped() -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)  # the terminal has written ^C
    complain("stopped.")


def _stop(number: int, frame: types.FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            say_stopped()
            sys.stderr.flush()
            os._exit(STOPPED)
        frame = frame.f_back
    raise KeyboardInterrupt
