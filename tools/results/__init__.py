"""Recorded runs: saved as JSON with their curves, shown next to the paper's tables, packed as weights.

``python -m tools.results`` is the command, from the root of a checkout.
"""

from tools.results.compare import compare_solvers, compare_storage, mirrored_error
from tools.results.gpu import write_gpu_page
from tools.results.pack import pack_weights
from tools.results.record import keep_comparisons, load_records, record_run, save_record
from tools.results.report import fill_page, make_table, write_report

__all__ = [
    "compare_solvers",
    "compare_storage",
    "fill_page",
    "keep_comparisons",
    "load_records",
    "make_table",
    "mirrored_error",
    "pack_weights",
    "record_run",
    "save_record",
    "write_gpu_page",
    "write_report",
]
