"""Benchmarks: every figure is a ratio measured side by side, saved as JSON and drawn from it."""

from torchscn.bench.report import draw, load_results, print_table, run_suite, save_results
from torchscn.bench.suites import SUITES

__all__ = ["SUITES", "draw", "load_results", "print_table", "run_suite", "save_results"]
