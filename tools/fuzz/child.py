"""Commands in processes of their own, which may be killed and may run out of disk space.

Importing torch takes seconds, so processes are forked from a server that has it loaded, and begin at once.
"""

import contextlib
import io
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

__all__ = ["Fault", "Finished", "run_command", "start_command"]

TIMEOUT_SECONDS = 120
PRELOADED = (
    *("torchscn.training.loop", "torchscn.cli.train", "torchscn.cli.commands", "torchscn.cli.data"),
    *("sklearn.datasets", "matplotlib.figure", "matplotlib.backends.backend_agg", "torch._dynamo"),
)


@dataclass(frozen=True)
class Fault:
    """What goes wrong when a process touches files of certain names.

    Args:
        kind: ``"kill"``: the process is killed; ``"tear"``: the file is cut first, as when the power fails before
            it is flushed; ``"full"``: no more than ``size`` bytes fit into the file.
        name: how the names of these files end.
        nth: which touch it is, from 1 on: files are touched when they are opened, flushed, renamed or removed.
        size: how much of the file remains or fits, in bytes.
    """

    kind: str
    name: str = ""
    nth: int = 1
    size: int = 0


@dataclass(frozen=True)
class Finished:
    """How a process ended: its exit code (negative: the signal) and what it printed to stderr."""

    code: int
    complaints: str


def run_command(arguments: Sequence[str], scratch: Path, fault: Fault | None = None) -> Finished:
    """Run ``scn`` with these arguments to its end; what it prints goes through files in ``scratch``."""
    process, log = start_command(arguments, scratch, fault)
    process.join(TIMEOUT_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
        return Finished(-signal.SIGKILL, f"it still ran after {TIMEOUT_SECONDS} seconds")
    return Finished(process.exitcode, log.read_text(errors="replace"))


def start_command(
    arguments: Sequence[str], scratch: Path, fault: Fault | None = None
) -> tuple[ForkServerProcess, Path]:
    """Start ``scn`` with these arguments; returns the process and the file of what it prints to stderr."""
    log = scratch / "stderr.txt"
    log.write_text("")  # the process may be killed before it gets there
    process = _context().Process(target=_main, args=(list(arguments), log, fault), daemon=True)
    process.start()
    return process, log


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, __name__])
    return context


def _main(arguments: list[str], log: Path, fault: Fault | None) -> None:
    """The body of a child process."""
    from torchscn.cli import main

    complaints = io.StringIO()  # not yet in a file, which the fault may make too large
    if fault is not None:
        _arm(fault)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(complaints):
            main(arguments)
    finally:
        _limit(resource.RLIM_INFINITY)
        log.write_text(complaints.getvalue())


def _arm(fault: Fault) -> None:
    """Let the fault happen: Python announces to its audit hooks what it is about to do with files, except flushing."""
    touches = 0
    path_of_last: list[str] = [""]

    def touch(path: str) -> None:
        nonlocal touches
        touches += 1
        if touches >= fault.nth and fault.kind in ("kill", "tear"):
            if fault.kind == "tear" and os.path.isfile(path):
                os.truncate(path, min(fault.size, os.path.getsize(path)))
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, details: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.remove") or isinstance(details[0], int):
            return
        path = os.fsdecode(details[0])
        concerned = path.endswith(fault.name)
        if event == "open":
            path_of_last[0] = path if concerned else ""
        if concerned:
            touch(path)
        if event == "open" and fault.kind == "full":
            _limit(fault.size if concerned and touches >= fault.nth else resource.RLIM_INFINITY)

    def flush(fd: Any) -> None:
        if path_of_last[0]:
            touch(path_of_last[0])
        fsync(fd)

    fsync = os.fsync
    os.fsync = flush
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing then fails with an error, as on a full disk
    sys.addaudithook(hook)


def _limit(size: int) -> None:
    """Let no file grow beyond this many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
