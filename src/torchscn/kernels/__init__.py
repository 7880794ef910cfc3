"""The CPU kernel (``cpu/``, C++), its loader, and the plain-torch sweeps that stand in for it."""

from torchscn.kernels.loader import KERNELS, active_kernel, available_kernels, compiled_sweeps
from torchscn.kernels.torch_sweeps import torch_sweeps

__all__ = ["KERNELS", "active_kernel", "available_kernels", "compiled_sweeps", "torch_sweeps"]
