"""The GPU, and the software that runs on it."""

import shutil
import subprocess
from typing import Any

import torch

from torchscn.environment import describe_environment
from torchscn.kernels.gpu import triton_version

__all__ = ["describe_device", "describe_versions", "find_device"]

_UNKNOWN = "unknown"


def find_device() -> torch.device:
    """The GPU to measure.

    Raises:
        RuntimeError: there is none.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"torch {torch.__version__} finds no CUDA device, which `scn bench gpu` is for; the other suites measure "
            "the CPU."
        )
    return torch.device("cuda", torch.cuda.current_device())


def describe_device(device: torch.device) -> dict[str, Any]:
    """Its name and what limits its speed."""
    if device.type != "cuda":
        return {"name": device.type, "capability": _UNKNOWN, "mebibytes": 0, "multiprocessors": 0}
    about = torch.cuda.get_device_properties(device)
    return {
        "name": about.name,
        "capability": f"{about.major}.{about.minor}",
        "mebibytes": about.total_memory // 2**20,
        "multiprocessors": about.multi_processor_count,
    }


def describe_versions() -> dict[str, str]:
    """The version of everything that can affect a result."""
    environment = describe_environment()
    return {
        "torchscn": environment["torchscn"],
        "commit": environment["commit"] or _UNKNOWN,
        "torch": environment["torch"],
        "triton": triton_version() or "none",
        "cuda": torch.version.cuda or f"HIP {torch.version.hip}",  # AMD's
        "driver": _driver(),
        "python": environment["python"],
        "system": environment["machine"],
    }


def _driver() -> str:
    """The version of NVIDIA's driver, which only its own program tells."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return _UNKNOWN
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return _UNKNOWN
    return lines[0] if lines else _UNKNOWN
