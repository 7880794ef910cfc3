"""The learning curve of a run as a picture."""

import io
from pathlib import Path
from typing import Any

from torchscn.atomic import replace_file

__all__ = ["draw_curves"]


def draw_curves(path: Path, metrics: list[dict[str, Any]], title: str) -> bool:
    """Training and test error over the epochs; returns False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        return False
    epochs = [entry["epoch"] for entry in metrics]
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(epochs, [entry["train_error"] for entry in metrics], color="C0", linestyle="--", label="train")
    axes.plot(epochs, [entry["test_error"] for entry in metrics], color="C0", label="test")
    last = metrics[-1]["test_error"] if metrics else float("nan")
    axes.set(xlabel="epoch", ylabel="error (%)", title=f"{title}: {last:.2f} % test error in the last epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, dpi=110, format="png")
    replace_file(path, [picture.getvalue()])
    return True
