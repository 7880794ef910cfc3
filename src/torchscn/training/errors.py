"""What can end a run early, for callers that must be able to catch it without importing torch."""

__all__ = ["Interrupted"]


class Interrupted(Exception):  # noqa: N818 (it is no error)
    """Ctrl-C or a termination signal ended the run; a checkpoint was written."""
