"""What can end a run early, for callers that must not import torch to catch it."""

__all__ = ["Interrupted"]


class Interrupted(Exception):  # noqa: N818 (it is no error)
    """Ctrl-C or a termination signal ended the run; a checkpoint was written."""
