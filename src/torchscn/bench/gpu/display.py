"""A result on the terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchscn.bench.gpu.result_file import Result
from torchscn.bench.gpu.summary import count_passed, failed_checks, step_rows
from torchscn.checks import printable

__all__ = ["print_result"]


def print_result(result: Result, console: Console) -> None:
    """Checks, those that failed in red, and the table of steps."""
    device, versions = result["device"], result["versions"]
    about = ", ".join(f"{name} {versions[name]}" for name in ("torch", "triton", "cuda", "driver", "torchscn"))
    console.print(Text(printable(f"{device['name']}, compute capability {device['capability']}, {about}")))
    if "triton_problem" in result:
        sentence = f"The Triton kernels cannot be used here, plain torch stands in: {result['triton_problem']}"
        console.print(Text(printable(sentence), style="yellow"))
    failed = failed_checks(result)
    for check in failed:
        console.print(Text(printable(f"FAILED: {check['name']}: {check['problem']}"), style="red"))
    console.print(Text(f"{count_passed(result)} checks passed", style="red" if failed else "green"))
    table = Table("network", "mode", "precision", "kernel", "step", "images/s", "time / twin's", "peak memory")
    for row in step_rows(result):
        speed = (row.time, row.images_per_second, row.ratio, row.memory)
        table.add_row(row.network, row.mode, row.precision, row.kernel, *speed, style="red" if row.failed else None)
    console.print(table)
