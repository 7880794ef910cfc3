"""``scn inspect``: a report about what a network has learned."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from torchscn.checks import printable
from torchscn.cli.arguments import DataDir, WholeNumber
from torchscn.cli.messages import as_typed, complain, naming_flags

if TYPE_CHECKING:
    from torchscn.data import ImageSet
    from torchscn.training import TrainedModel

__all__ = ["inspect"]


def inspect(
    run: str,
    *,
    output: Path | None = None,
    data_dir: DataDir = None,
    twin: str | None = None,
    images: WholeNumber = 4000,
) -> None:
    """Look inside a trained network: write a report with its atoms, codes, clusters, health and mistakes.

    The report is one file, report.html, that opens from disk; its pictures and numbers lie next to it. What needs test
    images is left out if the data set cannot be found.

    Parameters
    ----------
    run
        Folder of a run, or name of a network that comes with the package (listed by `scn info`).
    output
        Folder for the report; RUN/inspect for a run, inspect/NAME for a network of the package if not given.
    twin
        Run or network to compare with; the convolutional twin that comes with the package if there is one.
    images
        Test images to look at closely; the error is that of all.
    """
    if images < 1:
        raise ValueError(f"--images must be a whole number, at least 1; got {images}.")

    from torchscn import training
    from torchscn.inspect.canvas import new_figure
    from torchscn.inspect.findings import check_inspectable, inspect_network
    from torchscn.inspect.report import About, write_report

    new_figure(1, 1)  # without matplotlib this fails before anybody waits
    trained = training.load_trained(run)
    other_name = twin or _packaged_twin(trained)
    other = training.load_trained(other_name) if other_name else None
    check_inspectable(trained.model, None if other is None else other.model)
    test_images, problem = _test_images(trained, data_dir)
    folder = output or (Path(run) / "inspect" if Path(run).is_dir() else Path("inspect") / run)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output must be a folder; {folder} is a file.")
    folder.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("")

        def report(what: str, done: int, total: int) -> None:
            progress.update(bar, description=what, completed=done, total=total)

        with naming_flags("twin"):
            findings = inspect_network(
                trained.model,
                test_images,
                twin=None if other is None else other.model,
                n_images=images,
                report=report,
            )
        about = About(
            name=Path(run).resolve().name if Path(run).is_dir() else run,
            data=trained.config.data,
            images="held-out training images" if trained.config.validation else "test images",
            note=trained.note,
            twin=other_name,
            metrics=_metrics(run),
            no_images=problem,
        )
        pictures = len(findings.stages) + (12 if test_images is not None else 3)
        drawn = iter(range(1, pictures + 1))
        path = write_report(findings, about, folder, lambda name: report("drawing", next(drawn, pictures), pictures))
    for part, why in findings.left_out.items():
        complain(f"left out: {part}. {why}")
    print(printable(f"wrote {path}"))


def _packaged_twin(trained: "TrainedModel") -> str | None:
    """The convolutional twin that comes with the package, if there is one for this network and data."""
    from torchscn.weights import list_pretrained

    config = trained.config
    if config.validation:  # it was trained on images that are held out here
        return None
    name = f"{config.model.replace('scn', 'cnn')}-{config.data}"
    return name if config.model.startswith("scn") and name in list_pretrained() else None


def _test_images(trained: "TrainedModel", data_dir: Path | None) -> "tuple[ImageSet | None, str | None]":
    """The images a network is tested on, or why they cannot be had."""
    from torchscn.data import DataError
    from torchscn.training import evaluation_batches

    try:
        return evaluation_batches(trained, data_dir).images, None
    except DataError as error:
        why = as_typed(str(error), ["data_dir"])
        complain(f"no test images, so only the weights are looked at. {why}")
        return None, why


def _metrics(run: str) -> list[dict[str, Any]]:
    """The learning curve of a run; networks of the package have none."""
    from torchscn.training.run_folder import RunFolder

    return RunFolder(Path(run)).read_metrics() if Path(run).is_dir() else []
