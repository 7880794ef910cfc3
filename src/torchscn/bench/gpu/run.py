"""Check and measure everything on one device."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import torch

from torchscn.bench.gpu.checks import CheckRun, list_checks, run_check
from torchscn.bench.gpu.device import describe_device, describe_versions
from torchscn.bench.gpu.judge import Check
from torchscn.bench.gpu.kernel import find_kernel_problem
from torchscn.bench.gpu.result_file import DATE, FORMAT, Result
from torchscn.bench.gpu.steps import BUDGET_SECONDS, StepGroup, Timing, list_groups, measure_group
from torchscn.bench.problems import ImageBatch

__all__ = ["Progress", "measure_device", "run_checks", "run_steps"]

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how much is done, and how much there is."""


def measure_device(device: torch.device, rounds: int, progress: Progress) -> Result:
    """Everything about a device as plain values: what it is, the checks, and the steps.

    Where the Triton kernels cannot be used, plain torch is checked and measured alone.
    """
    start = time.time()
    # First, for nothing can be asked of a device after a kernel has crashed on it.
    about = {"device": describe_device(device), "versions": describe_versions()}
    problem = find_kernel_problem("triton", device)
    kernels = ("triton", "torch") if problem is None else ("torch",)
    checks = run_checks(list_checks(), kernels[0], device, progress)
    steps = run_steps(list_groups(kernels), rounds, device, progress)
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).strftime(DATE),
        **about,
        **({} if problem is None else {"triton_problem": problem}),
        "batch": ImageBatch().batch,
        "rounds": rounds,
        "budget_seconds": BUDGET_SECONDS,
        "tf32": {"convolutions": torch.backends.cudnn.allow_tf32, "products": torch.backends.cuda.matmul.allow_tf32},
        "took_seconds": round(time.time() - start, 1),
        "checks": [check.as_row() for check in checks],
        "steps": [timing.as_row() for timing in steps],
    }


def run_checks(checks: Mapping[str, CheckRun], kernel: str, device: torch.device, progress: Progress) -> list[Check]:
    """Every check, one after the other."""
    done: list[Check] = []
    for name, check in checks.items():
        progress("checking", len(done), len(checks))
        done.append(run_check(name, check, kernel, device))
    return done


def run_steps(groups: Sequence[StepGroup], rounds: int, device: torch.device, progress: Progress) -> list[Timing]:
    """Every measurement, one group after the other."""
    timings: list[Timing] = []
    for n, group in enumerate(groups):
        progress(f"measuring {group}", n, len(groups))
        timings += measure_group(group, rounds, device)
    return timings
