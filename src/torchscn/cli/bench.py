"""``scn bench``."""

from pathlib import Path

from rich.console import Console

from torchscn.checks import check_choice, printable
from torchscn.cli.arguments import WholeNumber

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
        solvers, nnls, layers, networks, scaling, memory, or all.
    rounds
        Rounds in which the competitors take turns; the best time of each counts.
    threads
        CPU threads.
    output
        Folder to save the results in, as JSON.
    draw
        Folder for pictures and tables of all results in --output.
    """
    import torch

    from torchscn import bench as benchmarks

    check_choice("suite", suite, [*benchmarks.SUITES, "all"])
    if draw is not None and output is None:
        raise ValueError("--draw needs the folder of the results: --output DIR.")
    if threads:
        torch.set_num_threads(threads)
    for name in benchmarks.SUITES if suite == "all" else [suite]:
        with Console(stderr=True).status(f"measuring {name}"):
            result = benchmarks.run_suite(name, rounds)
        benchmarks.print_table(result, Console(width=120))
        if output is not None:
            print(printable(f"saved as {benchmarks.save_results(output, result)}"))
    if draw is not None and output is not None:
        for picture in benchmarks.draw(output, draw):
            print(printable(f"wrote {picture}"))
