"""What a reader may do with a damaged file: the same as before, a fallback that it reports, or one clear sentence."""

import contextlib
import io
import resource
import signal
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Refused", "Wrong", "check_command", "check_sentence", "limited", "problem_of", "read_or_refuse"]

T = TypeVar("T")

LONGEST_SENTENCE = 1000  # characters
LONGEST_SECONDS = 20
MOST_MEMORY = 1_000_000  # kB more than before; an image of the largest size that is allowed takes most of it


class Wrong(Exception):  # noqa: N818 (it says what is wrong)
    """A reader did something it must not do."""


class Hung(BaseException):
    """A reader took too long; not an Exception, because some readers catch all of those."""


class Refused(str):
    """The sentence with which a reader refused a file."""


def read_or_refuse(read: Callable[[], T], path: Path, *errors: type[Exception]) -> T | Refused:
    """What ``read`` returns, or the sentence in one of the documented ``errors``, which must name ``path``."""
    try:
        return read()
    except errors as error:
        if isinstance(error, UnicodeError) or type(error).__name__ == "JSONDecodeError":  # both are ValueErrors
            raise Wrong(f"{type(error).__name__}: {error}") from error
        check_sentence(str(error), path)
        return Refused(error)


def check_sentence(sentence: str, path: Path) -> None:
    """Check that a message is short, on one line, and says which file it is about."""
    if "\n" in sentence or not 0 < len(sentence) < LONGEST_SENTENCE:
        raise Wrong(f"not one sentence: {sentence[:200]!r}")
    if str(path) not in sentence:
        raise Wrong(f"the message does not name {path.name}: {sentence[:200]!r}")


def check_command(main: Callable[[list[str]], Any], arguments: list[str], path: Path) -> bool:
    """Run a command in this process; it must succeed (returns True), or say in one line what is wrong with ``path``."""
    out, complaints, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaints):
        try:
            main(arguments)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
    if code == 0:
        return True
    lines = complaints.getvalue().splitlines()
    if code != 1 or len(lines) != 1:
        raise Wrong(f"exit code {code} with {len(lines)} lines: {lines[-3:]}")
    check_sentence(lines[0], path)
    return False


def problem_of(check: Callable[[], None]) -> str | None:
    """What is wrong according to a check, if anything; every exception that reaches us is."""
    try:
        with limited():
            check()
    except Wrong as wrong:
        return str(wrong)
    except (Exception, Hung) as error:
        return f"{type(error).__name__}: {error}"
    return None


@contextmanager
def limited() -> Iterator[None]:
    """Notice if what is done inside takes very long, or much memory."""
    before, started = _peak_memory(), time.monotonic()
    previous = signal.signal(signal.SIGALRM, _hung)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    if time.monotonic() - started > LONGEST_SECONDS:  # the signal waits for compiled code to end
        raise Wrong(f"it took {time.monotonic() - started:.0f} seconds")
    if _peak_memory() - before > MOST_MEMORY:
        raise Wrong(f"it took {(_peak_memory() - before) / 1000:.0f} MB")


def _hung(number: int, frame: types.FrameType | None) -> None:
    raise Hung(f"nothing after {LONGEST_SECONDS} seconds")


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
