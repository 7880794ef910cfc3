"""The tables about GPUs: what kernels need, and measurements from the files people have sent."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.gpu_resources import DEVICES, Needs, read_record
from tools.results.report import fill_page, make_table
from torchscn.bench.gpu import StepRow, count_passed, load_results, step_rows
from torchscn.bench.gpu.result_file import Result
from torchscn.bench.gpu.steps import OUT_OF_MEMORY

__all__ = ["make_gpu_tables", "make_resource_table", "write_gpu_page"]

NO_MEASUREMENT = (
    "No measurement has arrived yet, and none of us has a GPU: how fast the kernels are on one is not known.\n"
    "`scn bench gpu` finds out and writes a file; please send it to the authors."
)


def write_gpu_page(results: Path, page: Path) -> list[Path]:
    """Update the tables of the page from the files in a folder; returns what was written.

    Raises:
        ValueError: a file is not a result of ``scn bench gpu``; it is named.
    """
    page.write_text(fill_page(page.read_text(), make_gpu_tables(load_results(results))))
    return [page]


def make_gpu_tables(results: Sequence[Result]) -> dict[str, str]:
    """The tables as markdown, by the name of their places."""
    measured = f"{_devices(results)}\n\n{_steps(results)}" if results else NO_MEASUREMENT
    return {"gpu": measured, "resources": make_resource_table(read_record())}


def make_resource_table(found: list[Needs]) -> str:
    """One row per kernel, with registers, bytes spilled and shared memory on every device."""
    devices = sorted({needs.device for needs in found})
    rows: dict[tuple[str, str, str], dict[int, Needs]] = {}
    for needs in found:
        rows.setdefault((needs.kernel, needs.constraint, needs.shape), {})[needs.device] = needs
    columns = ["kernel", "constraint", "tile", *(f"sm_{device} ({DEVICES[device]})" for device in devices), "shared"]
    cells = [
        [*name, *(f"{row[d].registers} / {row[d].spilled_bytes}" for d in devices), _shared(row.values())]
        for name, row in rows.items()
    ]
    return make_table(columns, cells)


def _shared(needs: Iterable[Needs]) -> str:
    size = max(one.shared_bytes for one in needs)
    return f"{size / 1024:.3g} KB" if size >= 1024 else f"{size} B"


def _devices(results: Sequence[Result]) -> str:
    columns = ["device", "capability", "driver", "CUDA", "torch", "triton", "torchscn", "date", "checks passed"]
    rows = [
        [
            result["device"]["name"],
            result["device"]["capability"],
            *(result["versions"][name] for name in ("driver", "cuda", "torch", "triton")),
            f"{result['versions']['torchscn']} ({result['versions']['commit']})",
            result["date"],
            _checks(result),
        ]
        for result in results
    ]
    return make_table(columns, rows)


def _checks(result: Result) -> str:
    kernels = ", ".join(dict.fromkeys(check["kernel"] for check in result["checks"]))
    return f"{count_passed(result)} ({kernels})" if kernels else "none made"


def _steps(results: Sequence[Result]) -> str:
    columns = ["device", "network", "mode", "precision", "kernel", "step", "images/s", "time / twin's", "peak memory"]
    rows = [[result["device"]["name"], *_cells(row)] for result in results for row in step_rows(result)]
    return make_table(columns, rows)


def _cells(row: StepRow) -> list[str]:
    # What else a program said when it failed may be long, and anything.
    time = row.time if not row.failed or row.time == OUT_OF_MEMORY else "failed"
    return [row.network, row.mode, row.precision, row.kernel, time, row.images_per_second, row.ratio, row.memory]
