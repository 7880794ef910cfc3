"""The learning curve of a run as a picture."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscn.atomic import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_curves", "plot_errors"]


def draw_curves(path: Path, metrics: list[dict[str, Any]], title: str) -> bool:
    """Training and test error over the epochs; returns False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    plot_errors(axes, metrics, "C0")
    last = metrics[-1].get("test_error", float("nan")) if metrics else float("nan")
    axes.set_title(f"{title}: {last:.2f} % test error in the last epoch")
    axes.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=110, format="png")
    replace_file(path, [picture.getvalue()])
    return True


def plot_errors(axes: "Axes", metrics: list[dict[str, Any]], colour: str) -> None:
    """Training and test error over the epochs, in a chart of yours."""
    from matplotlib.ticker import MaxNLocator

    for name, style in (("train", "--"), ("test", "-")):
        points = {entry["epoch"]: entry[f"{name}_error"] for entry in metrics if f"{name}_error" in entry}
        axes.plot(list(points), list(points.values()), color=colour, linestyle=style, label=name)
    axes.set(xlabel="epoch", ylabel="error (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    axes.legend()
