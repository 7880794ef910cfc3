"""``scn eval`` and ``scn predict``: what a trained network can do."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Column, Table

from torchscn.cli.arguments import DataDir

if TYPE_CHECKING:
    from torchscn.certificates import LayerCertificate
    from torchscn.training import Evaluation

__all__ = ["evaluate", "predict"]


def evaluate(
    run: str,
    *,
    data_dir: DataDir = None,
    solver: str | None = None,
    tol: float | None = None,
    max_iter: int | None = None,
    batch_size: int = 256,
    confusion: bool = False,
) -> None:
    """Evaluate a trained network on test images: error, classes, speed, and certificates of every layer.

    Use another solver or tolerance to see how looser or tighter codes change the error.

    Parameters
    ----------
    run
        Folder of a run, or name of a network that comes with the package (listed by `scn info`).
    solver
        Solver to use instead.
    tol
        Relative accuracy of the codes.
    max_iter
        Cap on the solver's iterations.
    batch_size
        Images per batch.
    confusion
        Also show which classes are mistaken for which.
    """
    from torchscn import training
    from torchscn.certificates import certify, spread_sample
    from torchscn.training.run_folder import count_parameters

    given = {"solver": solver, "tol": tol, "max_iter": max_iter}
    trained = training.load_trained(run, {name: value for name, value in given.items() if value is not None})
    batches = training.evaluation_batches(trained, data_dir, batch_size)
    console = Console()
    if trained.note:
        console.print(f"note: {trained.note}", style="yellow", soft_wrap=True, markup=False)
    n_images = len(batches.images)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("evaluating", total=n_images)
        result = training.evaluate(trained.model, batches, progress=lambda done: progress.update(bar, completed=done))
    console.print(
        f"test error {result.error:.2f}%  loss {result.loss:.4f}  {n_images} images, "
        f"{result.images_per_second:.0f} images/s, {count_parameters(trained.model):,} parameters",
        highlight=False,
    )
    console.print(_class_table(result, batches.images.classes))
    if confusion:
        console.print(_confusion_table(result, batches.images.classes))
    sample = trained.model.preprocess(spread_sample(batches.images.images))
    certificates = certify(trained.model, sample)
    if certificates:
        console.print(_certificate_table(certificates))


def _class_table(result: "Evaluation", classes: tuple[str, ...]) -> Table:
    table = Table("class", "error %", "most often mistaken for", box=None)
    for index, error in enumerate(result.class_errors()):
        mistakes = result.confusion[index].clone()
        mistakes[index] = 0
        taken_for = f"{classes[int(mistakes.argmax())]} ({int(mistakes.max())})" if mistakes.any() else ""
        table.add_row(escape(classes[index]), f"{error:.1f}", escape(taken_for))
    return table


def _confusion_table(result: "Evaluation", classes: tuple[str, ...]) -> Table:
    names = [escape(name) for name in classes]
    table = Table("true \\ answer", *names, box=None)
    for name, row in zip(names, result.confusion.tolist(), strict=True):
        table.add_row(name, *(str(count) if count else "." for count in row))
    return table


def _certificate_table(certificates: "list[LayerCertificate]") -> Table:
    table = Table("layer", "iterations", "residual", "converged %", "active %", "dead %", "lam1", box=None)
    for c in certificates:
        shares = ("-" if share is None else f"{100 * share:.1f}" for share in (c.converged, c.active, c.dead))
        table.add_row(escape(c.name), f"{c.iterations:.1f}", f"{c.residual:.1e}", *shares, f"{c.lam1:.3g}")
    return table


def predict(run: str, *images: Path, top: int = 3) -> None:
    """Classify image files with a trained network.

    Parameters
    ----------
    run
        Folder of a run, or name of a network that comes with the package (listed by `scn info`).
    images
        Image files; each is scaled to the size the network was trained on.
    top
        How many answers to show per image.
    """
    if not images:
        raise ValueError("name at least one image file.")

    import torch

    from torchscn.data import read_image
    from torchscn.training import load_trained

    model = load_trained(run).model
    assert model.classes is not None
    assert model.image_size is not None
    n_answers = min(top, model.num_classes)
    table = Table(Column("image", overflow="fold"), *["answer"] * n_answers, box=None)
    for path in images:
        pixels = read_image(path, channels=model.in_channels, size=model.image_size)
        with torch.inference_mode():
            shares = model(model.preprocess(pixels[None])).softmax(1)[0]
        best = shares.topk(n_answers)
        answers = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        table.add_row(
            escape(str(path)), *(f"{escape(model.classes[index])} {100 * share:.1f}%" for index, share in answers)
        )
    Console().print(table)
