"""``python -m tools.results``: update the pages, record a run, pack its weights."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import Progress

from tools import results
from tools.command import run_command
from torchscn.checks import check_choice
from torchscn.weights import pretrained_folder

app = App(name="python -m tools.results", help="Bring tables and pictures up to date with the recorded runs.")

Records = Annotated[Path, Parameter(help="Folder of the records.")]
DataDir = Annotated[Path | None, Parameter(help="Folder of the data sets; TORCHSCN_DATA if not given.")]


@app.default
def update(
    records: Records = Path("results"),
    docs: Path = Path("docs"),
    readme: Path = Path("README.md"),
    gpu: Path = Path("benchmarks/results/gpu"),
) -> None:
    """Bring tables and pictures up to date with the recorded runs.

    Parameters
    ----------
    docs
        Folder of results.md and gpu.md.
    readme
        Another page with tables.
    gpu
        Folder of the files of `scn bench gpu`.
    """
    for path in [*results.write_report(records, docs, readme), *results.write_gpu_page(gpu, docs / "gpu.md")]:
        print(f"wrote {path}")


@app.command
def add(run: Path, *, records: Records = Path("results"), data_dir: DataDir = None, compare: int = 0) -> None:
    """Record a finished run: settings, environment, curve; earlier comparisons are kept.

    Parameters
    ----------
    run
        Folder of the run.
    compare
        Also test the network with its weights stored in float16, with mirrored images if it was trained on such, and
        with other solvers on the first test images, this many (the exact solver takes a second for a few).
    """
    record = results.record_run(run)
    results.keep_comparisons(records, record)
    if compare:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("")

            def show(what: str, done: int, total: int) -> None:
                progress.update(bar, description=what, completed=done, total=total)

            record["storage"] = results.compare_storage(run, data_dir, show)
            if record["settings"].get("flip"):
                record["mirrored_error"] = results.mirrored_error(run, data_dir, show)
            if record["model"].startswith("scn"):
                record["solvers"] = results.compare_solvers(run, data_dir, compare, show)
    print(f"wrote {results.save_record(records, record)}")


@app.command
def pack(run: Path, *, records: Records = Path("results"), output: Path | None = None) -> None:
    """Put the weights of a recorded run into the package, with a card and a hash.

    Parameters
    ----------
    run
        Folder of the run; its record must hold the comparison.
    output
        Folder to write to instead of the package.
    """
    found = results.load_records(records)
    name = run.resolve().name
    check_choice("run", name, found)
    print(f"wrote {results.pack_weights(run, found[name], output or pretrained_folder())}")


def main(arguments: list[str] | None = None) -> None:
    run_command(app, arguments)


if __name__ == "__main__":
    main()
