"""What can end a run early, for callers that must be able to catch it without importing torch."""

import signal

__all__ = ["Interrupted"]


class Interrupted(Exception):  # noqa: N818 (it is no error)
    """Ctrl-C or a termination signal ended the run; a checkpoint was written.

    Args:
        message: what happened and how to go on.
        signal_number: the signal that ended it.
    """

    def __init__(self, message: str, signal_number: int = signal.SIGINT):
        super().__init__(message)
        self.signal_number = signal_number
