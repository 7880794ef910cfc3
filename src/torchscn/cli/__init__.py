"""The command ``scn``: parse, call, print."""

import os
import platform
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import torch
from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Column, Table

import torchscn
from torchscn import checks, training
from torchscn import data as datasets
from torchscn import results as recorded
from torchscn.bench import SUITES, print_table, run_suite, save_results
from torchscn.bench import draw as draw_results
from torchscn.kernels import active_kernel, available_kernels
from torchscn.training.loop import Interrupted
from torchscn.training.memory import keep_freed_memory
from torchscn.training.run_folder import count_parameters
from torchscn.weights import pretrained_folder

__all__ = ["app", "main"]

app = cyclopts.App(
    name="scn",
    help="Deep sparse coding networks for PyTorch.",
    version=torchscn.__version__,
)
results_app = cyclopts.App(name="results", help="Bring tables and pictures up to date with the recorded runs.")
app.command(results_app)
data_app = cyclopts.App(name="data", help="Show which data sets are here, what is missing and where to get it.")
app.command(data_app)

DataDir = Annotated[Path | None, Parameter(help="Folder of the data sets; otherwise TORCHSCN_DATA.")]


@app.command
def train(
    recipe: str,
    *,
    run_dir: Path | None = None,
    data_dir: DataDir = None,
    resume: bool = False,
    device: str = "auto",
    threads: int | None = None,
    quiet: bool = False,
    **settings: str,
) -> None:
    """Train a network: a recipe, and any of its settings with another value.

    For example: scn train cifar10-scn1 --epochs 2 --lr 0.05. `scn recipes` lists the recipes and all settings.
    With several processes: torchrun --nproc-per-node 2 -m torchscn train RECIPE --run-dir DIR ...

    Parameters
    ----------
    recipe
        Name of a recipe, or path of a TOML file.
    run_dir
        Folder for settings, metrics, checkpoints and pictures; runs/RECIPE-TIME unless given.
    resume
        Go on from the checkpoint in --run-dir, exactly as if the run had never stopped.
    device
        cpu, cuda, or auto for CUDA where there is one.
    threads
        CPU threads of each process.
    quiet
        Print nothing.
    settings
        Any setting of the recipe, for example --lr 0.05.
    """
    if threads:
        torch.set_num_threads(threads)
    keep_freed_memory()
    config = training.load_recipe(recipe).override(settings)
    if run_dir is None:
        if resume or "RANK" in os.environ:
            raise ValueError("name the run folder: --run-dir DIR (needed with --resume and under torchrun).")
        run_dir = Path("runs") / f"{Path(recipe).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    training.train(config, run_dir, data_dir=data_dir, resume=resume, device=device, quiet=quiet)


@app.command
def recipes(name: str | None = None) -> None:
    """List the recipes and the settings they may hold, or show one recipe in full.

    Parameters
    ----------
    name
        Recipe to show.
    """
    console = Console()
    if name is not None:
        console.print(training.load_recipe(name).to_json(), highlight=False, end="")
        return
    table = Table("recipe", "what it trains", box=None)
    for recipe, description in training.list_recipes().items():
        table.add_row(recipe, description)
    console.print(table)
    console.print(f"\nsettings: {', '.join(vars(training.TrainConfig()))}", highlight=False, soft_wrap=False)


@app.command(name="eval")
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
    """Evaluate a trained network: error, classes, speed, and certificates of every layer on test images.

    Another solver or tolerance shows what looser or tighter codes do to the error.

    Parameters
    ----------
    run
        Folder of a run, or name of a network that comes with the package (`scn info` lists them).
    solver
        Solve with this one instead.
    tol
        Relative accuracy of the codes.
    max_iter
        Cap on the solver's iterations.
    batch_size
        Images at once.
    confusion
        Also show which classes are taken for which.
    """
    given = {"solver": solver, "tol": tol, "max_iter": max_iter}
    trained = _load_network(run, {name: value for name, value in given.items() if value is not None})
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
    _print_classes(console, result, batches.images.classes)
    if confusion:
        _print_confusion(console, result, batches.images.classes)
    sample = trained.model.preprocess(training.spread_sample(batches.images.images))
    _print_certificates(console, training.certify(trained.model, sample))


def _print_classes(console: Console, result: training.Evaluation, classes: tuple[str, ...]) -> None:
    table = Table("class", "error %", "most often taken for", box=None)
    for index, error in enumerate(result.class_errors()):
        mistakes = result.confusion[index].clone()
        mistakes[index] = 0
        taken_for = f"{classes[int(mistakes.argmax())]} ({int(mistakes.max())})" if mistakes.any() else ""
        table.add_row(escape(classes[index]), f"{error:.1f}", escape(taken_for))
    console.print(table)


def _print_confusion(console: Console, result: training.Evaluation, classes: tuple[str, ...]) -> None:
    names = [escape(name) for name in classes]
    table = Table("true \\ answer", *names, box=None)
    for name, row in zip(names, result.confusion.tolist(), strict=True):
        table.add_row(name, *(str(count) if count else "." for count in row))
    console.print(table)


def _print_certificates(console: Console, certificates: list[training.LayerCertificate]) -> None:
    if not certificates:
        return
    table = Table("layer", "iterations", "residual", "converged %", "active %", "dead %", "lam1", box=None)
    for c in certificates:
        shares = ("-" if share is None else f"{100 * share:.1f}" for share in (c.converged, c.active, c.dead))
        table.add_row(c.name, f"{c.iterations:.1f}", f"{c.residual:.1e}", *shares, f"{c.lam1:.3g}")
    console.print(table)


def _load_network(source: str, overrides: dict[str, Any]) -> training.TrainedModel:
    """The network of a run folder, or one that comes with the package."""
    names = torchscn.list_pretrained()
    if Path(source).exists():
        return training.load_trained(Path(source), overrides)
    if source not in names:
        raise ValueError(f"{source!r} is neither a run folder nor a network of the package ({', '.join(names)}).")
    model, data_set = source.split("-", 1)
    network = torchscn.create_model(model, pretrained=data_set, **overrides)
    return training.TrainedModel(network, training.TrainConfig(data=data_set, model=model), None)


@app.command
def predict(run: str, *images: Path, top: int = 3) -> None:
    """Classify image files with a trained network.

    Parameters
    ----------
    run
        Folder of a run, or name of a network that comes with the package (`scn info` lists them).
    images
        Image files; each is scaled to the size the network was trained on.
    top
        How many answers to show for each.
    """
    if not images:
        raise ValueError("name at least one image file.")
    model = _load_network(run, {}).model
    assert model.classes is not None
    assert model.image_size is not None
    n_answers = min(top, model.num_classes)
    table = Table(Column("image", overflow="fold"), *["answer"] * n_answers, box=None)
    for path in images:
        pixels = datasets.read_image(path, channels=model.in_channels, size=model.image_size)
        with torch.inference_mode():
            shares = model(model.preprocess(pixels[None])).softmax(1)[0]
        best = shares.topk(n_answers)
        answers = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        table.add_row(
            escape(str(path)), *(f"{escape(model.classes[index])} {100 * share:.1f}%" for index, share in answers)
        )
    Console().print(table)


@data_app.default
def data(data_dir: DataDir = None) -> None:
    """Show which data sets are here, what is missing and where to get it."""
    table = Table("data set", "state", "where", box=None)
    for entry in datasets.status(data_dir):
        state = "here" if entry.found else entry.problem or "missing"
        place = entry.path if entry.found else entry.source
        table.add_row(entry.name, escape(state), escape(str(place or "comes with scikit-learn")))
    Console().print(table)
    print("`scn data get NAME` downloads one; folder:PATH uses your own pictures, one folder a class.")


@data_app.command(name="get")
def data_get(name: str, *, data_dir: DataDir = None, base_url: str | None = None) -> None:
    """Download a data set, checked by its hash; an interrupted download goes on where it stopped.

    Parameters
    ----------
    name
        One of the names `scn data` shows.
    base_url
        Another place to get the official files from.
    """
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        bar = progress.add_task(name, total=None)
        datasets.download(
            name,
            data_dir,
            base_url=base_url,
            progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    print(f"{name} is ready.")


@app.command
def bench(
    suite: str = "networks",
    *,
    rounds: int = 10,
    threads: int | None = None,
    output: Path | None = None,
    draw: Path | None = None,
) -> None:
    """Measure speed and memory side by side with others; nothing else should run meanwhile.

    Parameters
    ----------
    suite
        solvers, layers, networks, scaling, memory, or all.
    rounds
        Rounds in which the competitors take turns; each one's best counts.
    threads
        CPU threads.
    output
        Folder to keep the results in, as JSON.
    draw
        Folder for pictures and tables of all results in --output.
    """
    if threads:
        torch.set_num_threads(threads)
    checks.check_choice("suite", suite, [*SUITES, "all"])
    for name in SUITES if suite == "all" else [suite]:
        with Console(stderr=True).status(f"measuring {name}"):
            result = run_suite(name, rounds)
        print_table(result, Console(width=120))
        if output is not None:
            print(f"kept in {save_results(output, result)}")
    if draw is not None:
        if output is None:
            raise ValueError("--draw needs the folder of the results: --output DIR.")
        for picture in draw_results(output, draw):
            print(f"wrote {picture}")


Records = Annotated[Path, Parameter(help="Folder of the records.")]


@results_app.default
def results(records: Records = Path("results"), docs: Path = Path("docs"), readme: Path = Path("README.md")) -> None:
    """Bring tables and pictures up to date with the recorded runs.

    Parameters
    ----------
    docs
        Folder of results.md.
    readme
        Another page with tables.
    """
    for path in recorded.write_report(records, docs, readme):
        print(f"wrote {path}")


@results_app.command(name="add")
def results_add(run: Path, *, records: Records = Path("results"), data_dir: DataDir = None, compare: int = 0) -> None:
    """Record a finished run: settings, environment, curve; comparisons recorded earlier are kept.

    Parameters
    ----------
    run
        Folder of the run.
    compare
        Also test the network with its weights stored in float16, and with other solvers on the first so many test
        images (the exact solver takes a second for a few).
    """
    record = recorded.record_run(run)
    recorded.keep_comparisons(records, record)
    if compare:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("")

            def show(what: str, done: int, total: int) -> None:
                progress.update(bar, description=what, completed=done, total=total)

            record["storage"] = recorded.compare_storage(run, data_dir, show)
            if record["model"].startswith("scn"):
                record["solvers"] = recorded.compare_solvers(run, data_dir, compare, show)
    print(f"wrote {recorded.save_record(records, record)}")


@results_app.command(name="pack")
def results_pack(run: Path, *, records: Records = Path("results"), output: Path | None = None) -> None:
    """Put the weights of a recorded run into the package, with a card and a hash.

    Parameters
    ----------
    run
        Folder of the run; its record must hold the comparison.
    output
        Another folder for them.
    """
    found = recorded.load_records(records)
    checks.check_choice("run", run.resolve().name, found)
    print(f"wrote {recorded.pack_weights(run, found[run.resolve().name], output or pretrained_folder())}")


@app.command
def info() -> None:
    """Show versions, the solver kernel in use and what else this machine could run."""
    table = Table(show_header=False, box=None)
    for name, value in _environment().items():
        table.add_row(name, value)
    Console().print(table)


def _environment() -> dict[str, str]:
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "torchscn": torchscn.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
        "kernel": active_kernel(),
        "kernels available": ", ".join(available_kernels()),
        "solvers": ", ".join(torchscn.list_solvers()),
        "models": ", ".join(torchscn.list_models()),
        "trained networks": ", ".join(torchscn.list_pretrained()),
        "cuda device": cuda,
    }


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; a mistake in the input ends in one sentence, not a traceback."""
    try:
        return app(arguments)
    except Interrupted as stop:
        print(f"\nscn: {stop}", file=sys.stderr)
        sys.exit(130)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"scn: {error}", file=sys.stderr)
        sys.exit(1)
