"""``scn eval``: how well a trained network does on test images."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from torchscn.cli.arguments import DataDir, WholeNumber
from torchscn.cli.display import plain
from torchscn.cli.messages import naming_flags

if TYPE_CHECKING:
    from torchscn.certificates import LayerCertificate
    from torchscn.training import Evaluation

__all__ = ["evaluate"]


def evaluate(
    run: str,
    *,
    data_dir: DataDir = None,
    solver: str | None = None,
    tol: float | None = None,
    max_iter: WholeNumber | None = None,
    batch_size: WholeNumber = 256,
    confusion: bool = False,
    mirror: bool = False,
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
    mirror
        Average the scores of every image with those of its mirror image.
    """
    from torchscn import training
    from torchscn.certificates import certify, spread_sample
    from torchscn.training.run_folder import count_parameters

    given = {"solver": solver, "tol": tol, "max_iter": max_iter}
    with naming_flags(*given, "data_dir", "batch_size"):
        trained = training.load_trained(run, {name: value for name, value in given.items() if value is not None})
        batches = training.evaluation_batches(trained, data_dir, batch_size)
    console = Console()
    if trained.note:
        console.print(plain(f"note: {trained.note}"), style="yellow", soft_wrap=True)
    n_images = len(batches.images)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("evaluating", total=n_images)

        def show(done: int) -> None:
            progress.update(bar, completed=done)

        result = training.evaluate(trained.model, batches, progress=show, mirror=mirror)
    how = " (with mirror images)" if mirror else ""
    console.print(
        f"test error {result.error:.2f}%{how}  loss {result.loss:.4f}  {n_images} images, "
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
        table.add_row(plain(classes[index]), f"{error:.1f}", plain(taken_for))
    return table


def _confusion_table(result: "Evaluation", classes: tuple[str, ...]) -> Table:
    names = [plain(name) for name in classes]
    table = Table("true \\ answer", *map(Column, names), box=None)
    for name, row in zip(names, result.confusion.tolist(), strict=True):
        table.add_row(name, *(str(count) if count else "." for count in row))
    return table


def _certificate_table(certificates: "list[LayerCertificate]") -> Table:
    table = Table("layer", "iterations", "residual", "converged %", "active %", "dead %", "lam1", box=None)
    for c in certificates:
        shares = ("-" if share is None else f"{100 * share:.1f}" for share in (c.converged, c.active, c.dead))
        table.add_row(plain(c.name), f"{c.iterations:.1f}", f"{c.residual:.1e}", *shares, f"{c.lam1:.3g}")
    return table
