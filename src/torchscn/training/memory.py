"""What the C library does with memory that tensors no longer need."""

import ctypes

__all__ = ["keep_freed_memory"]

# Options of glibc's mallopt, from <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Let this process keep freed memory for later tensors instead of giving it back to the system each time.

    A training step frees and requests the same large blocks again and again; having the system hand out (and clear)
    them each time costs several per cent of a step. Does nothing where the C library is not glibc.

    Example:
        >>> keep_freed_memory()
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
