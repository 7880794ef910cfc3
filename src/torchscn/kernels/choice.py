"""The environment variable ``TORCHSCN_KERNEL``, which chooses a kernel; it is read at every call."""

import os

__all__ = ["KERNELS", "wanted_kernel"]

KERNELS = ("torch", "generic", "avx2", "avx512", "triton")
"""Every kernel ``TORCHSCN_KERNEL`` can name besides ``auto``: plain torch, three for CPUs, and one for CUDA devices."""


def wanted_kernel() -> str:
    """The kernel that is asked for, or ``auto``.

    Raises:
        ValueError: there is no kernel of that name.

    Example:
        >>> wanted_kernel() in ("auto", *KERNELS)
        True
    """
    wanted = os.environ.get("TORCHSCN_KERNEL") or "auto"
    if wanted not in ("auto", *KERNELS):
        raise ValueError(f"TORCHSCN_KERNEL={wanted!r} is not a kernel. Use auto, {', '.join(KERNELS)}, or unset it.")
    return wanted
