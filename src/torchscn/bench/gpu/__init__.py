"""Kernels on a GPU: checked against float64, then measured beside plain torch and convolutions, in one file."""

from torchscn.bench.gpu.device import find_device
from torchscn.bench.gpu.display import print_result
from torchscn.bench.gpu.result_file import load_result, load_results, save_result
from torchscn.bench.gpu.run import measure_device
from torchscn.bench.gpu.summary import StepRow, count_passed, has_failures, step_rows

__all__ = [
    "StepRow",
    "count_passed",
    "find_device",
    "has_failures",
    "load_result",
    "load_results",
    "measure_device",
    "print_result",
    "save_result",
    "step_rows",
]
