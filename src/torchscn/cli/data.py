"""``scn data`` and ``scn data get``."""

from cyclopts import App
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Column, Table

from torchscn.checks import printable
from torchscn.cli.arguments import DataDir
from torchscn.cli.display import plain
from torchscn.cli.messages import as_typed, naming_flags

__all__ = ["app"]

app = App(name="data", help="Show which data sets are available, what is missing and where to get it.")


@app.default
def show(data_dir: DataDir = None) -> None:
    """Show which data sets are available, what is missing and where to get it."""
    from torchscn.data import status

    table = Table("data set", "state", Column("where", overflow="fold"), box=None)
    for entry in status(data_dir):
        state = "available" if entry.found else as_typed(entry.problem, ["data_dir"]) or "missing"
        place = entry.path if entry.found else entry.source
        table.add_row(entry.name, plain(state), plain(place or "comes with scikit-learn"))
    Console().print(table)
    print("`scn data get NAME` downloads one; folder:PATH uses your own pictures, one folder per class.")


@app.command
def get(name: str, *, data_dir: DataDir = None, base_url: str | None = None) -> None:
    """Download a data set and check its hash; an interrupted download is resumed where it stopped.

    Parameters
    ----------
    name
        One of the names listed by `scn data`.
    base_url
        Another address to download the official files from.
    """
    from torchscn.data import download

    title = TextColumn(printable(name), markup=False)
    columns = (title, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with naming_flags("data_dir", "base_url"), Progress(*columns) as progress:
        bar = progress.add_task(name, total=None)
        download(
            name,
            data_dir,
            base_url=base_url,
            progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    print(f"{name} is ready.")
