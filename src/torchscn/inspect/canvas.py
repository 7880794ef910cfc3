"""What all pictures of a report have in common."""

import io
import warnings
from typing import TYPE_CHECKING

from torchscn.inspect.tiles import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DPI", "GREY", "OURS", "TWINS", "as_png", "new_figure", "plain", "short", "show"]

DPI = 100
OURS = "#1f6f8b"
TWINS = "#d1603d"
GREY = "#9a9a9a"
NEEDED = "A report is drawn with matplotlib, which is not installed. Run: pip install torchscn[inspect]"


def as_png(figure: "Figure") -> bytes:
    """A figure as the content of a PNG file: 256 colours, a third of the size and hardly to be told from all."""
    from PIL import Image  # matplotlib needs it, too

    drawn, content = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters of class names that its font lacks
        figure.savefig(drawn, dpi=DPI, format="png")
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(content, "png", optimize=True)
    return content.getvalue()


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of a size in inches; raises RuntimeError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RuntimeError(NEEDED) from error
    return Figure(figsize=(width, height), layout="constrained")


def show(axes: "Axes", picture: Picture, title: str, size: int = 9) -> None:
    """A picture with a title."""
    axes.imshow(picture, interpolation="nearest")
    axes.set_title(title, fontsize=size)
    axes.axis("off")


def plain(axes: "Axes") -> None:
    """A chart without a box around it."""
    axes.spines[["top", "right"]].set_visible(False)


def short(name: str) -> str:
    """A name without what matplotlib would take for a formula, cut to a length that fits."""
    name = name.replace("$", r"\$")
    return name if len(name) <= 14 else f"{name[:13]}…"
