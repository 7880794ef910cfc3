"""Benchmarks: every figure a ratio measured side by side, kept as JSON, drawn from it."""

from torchscn.bench.report import draw, load_results, print_table, run_suite, save_results
from torchscn.bench.suites import SUITES

__all__ = ["SUITES", "draw", "load_results", "print_table", "run_suite", "save_results"]
