"""Recorded runs: kept as JSON with their curves, shown beside the paper's tables, packed as weights."""

from torchscn.results.compare import compare_solvers, compare_storage
from torchscn.results.pack import pack_weights
from torchscn.results.record import keep_comparisons, load_records, record_run, save_record
from torchscn.results.report import write_report

__all__ = [
    "compare_solvers",
    "compare_storage",
    "keep_comparisons",
    "load_records",
    "pack_weights",
    "record_run",
    "save_record",
    "write_report",
]
