"""``scn bench``."""

import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from torchscn.checks import check_choice, check_number, printable
from torchscn.cli.arguments import WholeNumber
from torchscn.cli.messages import naming_flags

__all__ = ["bench"]


def bench(
    suite: str = "networks",
    *,
    rounds: WholeNumber = 10,
    threads: WholeNumber | None = None,
    output: Path | None = None,
    draw: Path | None = None,
) -> None:
    """Measure speed and memory side by side with alternatives; run nothing else meanwhile.

    Parameters
    ----------
    suite
        solvers, nnls, layers, networks, scaling, memory, or all; or gpu: check the kernels on a CUDA device against
        float64, then measure whole networks there.
    rounds
        Rounds in which the competitors take turns; the best time of each counts.
    threads
        CPU threads.
    output
        Folder to save the results in, as JSON; gpu always saves, in the current folder unless given.
    draw
        Folder for pictures and tables of all results in --output.
    """
    import torch

    from torchscn import bench as benchmarks

    check_choice("suite", suite, [*benchmarks.SUITES, "all", "gpu"])
    if draw is not None and output is None:
        raise ValueError("--draw needs the folder of the results: --output DIR.")
    if threads:
        torch.set_num_threads(threads)
    if suite == "gpu":
        if draw is not None:
            raise ValueError("--draw is not for gpu; in a checkout, `make results` puts its results into docs/gpu.md.")
        return _bench_gpu(rounds, output or Path())
    for name in benchmarks.SUITES if suite == "all" else [suite]:
        with Console(stderr=True).status(f"measuring {name}"):
            result = benchmarks.run_suite(name, rounds)
        benchmarks.print_table(result, Console(width=120))
        if output is not None:
            print(printable(f"saved as {benchmarks.save_results(output, result)}"))
    if draw is not None and output is not None:
        for picture in benchmarks.draw(output, draw):
            print(printable(f"wrote {picture}"))
    return None


def _bench_gpu(rounds: int, output: Path) -> None:
    """Check and measure the GPU; ends with exit code 1 if anything failed."""
    from torchscn.bench import gpu

    with naming_flags("rounds"):
        check_number("rounds", rounds, at_least=1, whole=True)
    device = gpu.find_device()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("")

        def show(what: str, done: int, total: int) -> None:
            progress.update(bar, description=what, completed=done, total=total)

        result = gpu.measure_device(device, rounds, show)
    path = gpu.save_result(output, result)
    gpu.print_result(result, Console(width=120))
    print(printable(f"saved as {path}; please send this file to the authors, so that it enters docs/gpu.md"))
    if gpu.has_failures(result):
        sys.exit(1)
