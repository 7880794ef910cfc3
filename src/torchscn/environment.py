"""The machine and the installation, described once: for run folders, benchmark results and ``scn info``."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["describe_environment"]


def describe_environment() -> dict[str, Any]:
    """Everything about the machine and the installation that can affect a result.

    Returns:
        ``torchscn``, ``torch`` and ``python``: versions. ``commit``: that of the checkout the package runs from, or
        None. ``machine`` and ``processor``: the system and the name of its processor. ``threads``: CPU threads of this
        process. ``world_size``: number of processes working together. ``kernel``: the kernel that solves on the CPU.
        ``gpu_kernel``: the one that solves on the CUDA device, or None without one. ``command``: the command that was
        typed.

    Raises:
        ValueError: ``TORCHSCN_KERNEL`` does not name a kernel.

    Example:
        >>> describe_environment()["world_size"]
        1
    """
    # Imported here so that torch is loaded only when this function is called.
    import torch

    import torchscn
    from torchscn.kernels import active_kernel, gpu_kernel

    return {
        "torchscn": torchscn.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "kernel": active_kernel(),
        "gpu_kernel": gpu_kernel() if torch.cuda.is_available() else None,
        "command": _command(),
    }


def _processor() -> str:
    """The name of the processor, as far as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _command() -> str:
    """The command, ready to be typed again: ``scn`` with its arguments, or the script or package that called us."""
    return " ".join([_program(Path(sys.argv[0])), shlex.join(sys.argv[1:])]).rstrip()


def _program(path: Path) -> str:
    if path.stem == "scn" or path.parts[-2:] == ("torchscn", "__main__.py"):
        return "scn"
    if path.name != "__main__.py":
        return f"python {path.name}"
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)  # known where a package was run with -m
    return f"python -m {spec.parent}" if spec and spec.parent else f"python {path.parent.name}"


def _commit() -> str | None:
    """The commit of the checkout the package runs from, if there is one."""
    # An installed package may be inside a checkout of something else, which does not track it.
    if not _git("ls-files", "__init__.py"):
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=12")


def _git(*arguments: str) -> str | None:
    """The output of a git command in the folder of this package, if there is any."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
