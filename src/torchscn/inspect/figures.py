"""The pictures of a report. Every function takes findings and returns a matplotlib figure; nothing is computed here."""

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchscn.inspect.clusters import ClusterScores
from torchscn.inspect.findings import Example, Findings, Misled, WithImages, slim_and_wide
from torchscn.inspect.health import LayerHealth
from torchscn.inspect.inverse import NoInverseError, synthesize, to_pixels
from torchscn.inspect.separation import Probe
from torchscn.inspect.stages import Stage
from torchscn.inspect.surveys import LayerUse, Survey
from torchscn.inspect.tiles import Box, Picture, as_picture, atom_picture, blank, enlarge, grid, stretched
from torchscn.inspect.uses import AtomUse, crop, most_used, strongest_uses
from torchscn.network import Network

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "MOST_ATOMS",
    "as_png",
    "draw_atoms",
    "draw_centres",
    "draw_clusters",
    "draw_confusion",
    "draw_curve",
    "draw_example",
    "draw_first_atoms",
    "draw_group_centres",
    "draw_health",
    "draw_mistakes",
    "draw_network",
    "draw_rebuilt",
    "draw_separation",
    "new_figure",
]

MOST_ATOMS = 24  # of a layer in one picture: those used most
TILE = 36  # pixels of the side of a small patch
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


def draw_network(findings: Findings) -> "Figure":
    """The layers as bars: as high as they are wide in atoms, darker where the picture gets smaller."""
    stages = findings.stages
    figure = new_figure(9, 2.9)
    axes = figure.subplots()
    numbers = [stage.number for stage in stages]
    widths = [stage.width for stage in stages]
    deepest = max(stage.field.step for stage in stages)
    shades = [0.35 + 0.6 * (1 + np.log2(stage.field.step)) / (1 + np.log2(max(2, deepest))) for stage in stages]
    bars = axes.bar(numbers, widths, width=0.7, color=[(*_rgb(OURS), min(1.0, shade)) for shade in shades])
    for stage, bar in zip(stages, bars, strict=True):
        text = f"{stage.width}" + (f"\nstride {stage.window.stride}" if stage.window.stride > 1 else "")
        axes.annotate(text, (bar.get_x() + bar.get_width() / 2, stage.width), ha="center", va="bottom", fontsize=8)
    kinds = ["coding" if stage.is_sparse else "conv" for stage in stages]
    fields = [f"{stage.number}\n{kind}\nsees {stage.field.size}" for stage, kind in zip(stages, kinds, strict=True)]
    axes.set_xticks(numbers, fields, fontsize=7)
    axes.set_ylim(0, 1.3 * max(widths))
    axes.set(ylabel="atoms", xlim=(0.3, len(stages) + 0.7))
    _plain(axes)
    return figure


def draw_curve(metrics: list[dict[str, Any]]) -> "Figure":
    """Training and test error over the epochs."""
    figure = new_figure(6.4, 3.4)
    axes = figure.subplots()
    epochs = [entry["epoch"] for entry in metrics]
    for name, style in (("train", "--"), ("test", "-")):
        axes.plot(epochs, [entry[f"{name}_error"] for entry in metrics], color=OURS, linestyle=style, label=name)
    axes.set(xlabel="epoch", ylabel="error (%)")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    _plain(axes)
    return figure


def draw_first_atoms(findings: Findings) -> "Figure":
    """The atoms (or filters) of the first layer as images."""
    stage = findings.stages[0]
    pictures = [enlarge(atom_picture(atom), 54) for atom in stage.atoms()]
    return _sheet(grid(pictures, min(16, len(pictures)), gap=6))


def draw_atoms(network: Network, use: LayerUse | None, survey: Survey | None, stage: Stage) -> "Figure":
    """Atoms of one layer: left what an atom stands for in pixels, right the patches that use it most."""
    atoms = list(range(min(MOST_ATOMS, stage.width))) if use is None else most_used(use, MOST_ATOMS)
    try:
        meanings = [enlarge(atom_picture(made), 3 * TILE + 2) for made in synthesize(network, stage.number, atoms)]
    except NoInverseError:
        meanings = []
    cells = []
    for index, atom in enumerate(atoms):
        parts = meanings[index : index + 1]
        if use is not None and survey is not None:
            parts = [*parts, _patches(survey, use, atom)]
        if parts:
            cells.append(grid(parts, len(parts), gap=2))
    if not cells:
        return _sheet(blank(10, 255))
    return _sheet(grid(cells, 4, gap=14), labels=[f"{atom}" for atom in atoms], columns=4, gap=14)


def draw_rebuilt(network: Network, found: WithImages) -> "Figure":
    """Originals in the first column, then what is their own in the image rebuilt from every layer.

    What all rebuilt images have in common is subtracted, and the contrast is that of the original.
    """
    chosen = found.shown
    originals = to_pixels(network, found.originals[chosen])
    pictures = []
    for index, original in zip(chosen, originals, strict=True):
        pictures.append(enlarge(as_picture(original), 62))
        for part in found.rebuilt:
            pictures.append(enlarge(as_picture(stretched(part.own[index], original)), 62))
    n_columns = len(found.rebuilt) + 1
    names = ["image", *(str(part.stage.number) for part in found.rebuilt)]
    return _sheet(grid(pictures, n_columns, gap=4), top=names, columns=n_columns, gap=4)


def draw_example(network: Network, example: Example) -> "Figure":
    """One image: where the answer comes from, which atoms decided, active atoms by place, sizes of codes."""
    classes = network.classes or ()
    scores = example.evidence.scores[0]
    first, second = scores.topk(min(2, len(scores))).indices.tolist()[:2] if len(scores) > 1 else (0, 0)
    n_layers = len(example.looks)
    figure = new_figure(10, 5.6)
    parts: Any = figure.subfigures(3, 1, height_ratios=[2.6, 1.3, 1.3])
    top, middle, bottom = parts
    picture, places, atoms = top.subplots(1, 3, width_ratios=[1, 1.15, 2])
    _show(picture, as_picture(example.image), f"truth: {_short(classes[example.truth])}")
    share = float(scores.double().softmax(0)[first])
    _draw_places(places, example, first, f"for {_short(classes[first])} ({100 * share:.0f} %)")
    _draw_deciding_atoms(atoms, example, first, second, classes)
    for axes, seen in zip(middle.subplots(1, n_layers, squeeze=False)[0], example.looks, strict=True):
        axes.imshow((seen.codes[0] != 0).sum(0).numpy(), cmap="viridis")
        axes.set_title(f"{seen.stage.number}", fontsize=8)
        axes.axis("off")
    middle.supylabel("active atoms", fontsize=8)
    panels = bottom.subplots(1, n_layers, sharey=True, squeeze=False)[0]
    for axes, seen in zip(panels, example.looks, strict=True):
        codes = seen.codes[0][(seen.codes[0] != 0) & seen.codes[0].isfinite()].abs()
        axes.hist(codes.numpy() if len(codes) else [0.0], bins=20, color=OURS, log=True)
        axes.tick_params(labelsize=6)
        axes.set_yticks([])
        _plain(axes)
    bottom.supylabel("code sizes", fontsize=8)
    return figure


def draw_clusters(found: WithImages, stages: tuple[Stage, ...]) -> "Figure":
    """Agreement with k-means and purity by class, layer by layer, network beside twin."""
    figure = new_figure(10, 4.4)
    left, right = figure.subplots(1, 2)
    _lines(left, found.clusters, "ceiling", GREY, ":", "k-means, another start")
    _lines(left, found.clusters, "by_direction", OURS, "--", "strongest atoms, patches by direction")
    _lines(left, found.clusters, "agreement", OURS, "-", "strongest atoms", mark=slim_and_wide(stages)[0])
    if found.twin_clusters:
        _lines(left, found.twin_clusters, "agreement", TWINS, "-", "twin: strongest channels")
    _lines(left, found.clusters, "floor", GREY, "--", "random directions")
    left.set(xlabel="layer", ylabel="agreement with k-means (AMI)", ylim=(0, 1))
    _lines(right, found.clusters, "purity", OURS, "-", "strongest atoms", mark=slim_and_wide(stages)[0])
    _lines(right, found.clusters, "purity_kmeans", GREY, "-", "k-means of the same patches")
    if found.twin_clusters:
        _lines(right, found.twin_clusters, "purity", TWINS, "-", "twin: strongest channels")
    _lines(right, found.clusters, "chance", GREY, ":", "one group")
    right.set(xlabel="layer", ylabel="purity by class", ylim=(0, 1))
    for axes in (left, right):
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)
        _plain(axes)
    return figure


def draw_group_centres(use: LayerUse) -> "Figure":
    """Atoms of the first layer, and below each the mean of the patches whose strongest atom it is."""
    stage, strongest = use.stage, use.places.codes.abs().argmax(1)
    shape = stage.atoms().shape[1:]
    atoms = most_used(use, 16)
    upper = [enlarge(atom_picture(stage.atoms()[atom]), 54) for atom in atoms]
    groups = [use.places.patches[strongest == atom] for atom in atoms]
    lower = [
        enlarge(atom_picture(group.float().mean(0).view(shape)), 54) if len(group) else blank(54) for group in groups
    ]
    return _sheet(grid([*upper, *lower], len(atoms), gap=6), top=list(map(str, atoms)), columns=len(atoms), gap=6)


def draw_centres(found: WithImages, layers: Sequence[int]) -> "Figure":
    """Patches of some layers in their two main directions, coloured by strongest atom, with the atoms themselves."""
    figure = new_figure(4.6 * len(layers), 4.2)
    for axes, number in zip(np.atleast_1d(figure.subplots(1, len(layers))), layers, strict=True):
        use = found.survey.layers[number - 1]
        _draw_centres(axes, use)
    return figure


def draw_separation(ours: list[Probe], twins: list[Probe], error: float) -> "Figure":
    """The error of a linear probe on every layer, network beside twin."""
    figure = new_figure(7, 3.6)
    axes = figure.subplots()
    for probes, colour, name in ((ours, OURS, "network"), (twins, TWINS, "twin")):
        if probes:
            errors, bars = [p.error for p in probes], [p.standard_error for p in probes]
            axes.errorbar(range(len(probes)), errors, bars, color=colour, marker="o", markersize=4, label=name)
    axes.axhline(error, color=GREY, linestyle=":", label="the network's own answers")
    axes.set(xlabel="layer (0: the image, averaged)", ylabel="error of a linear probe (%)")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    _plain(axes)
    return figure


def draw_health(health: list[LayerHealth]) -> "Figure":
    """Activity, lam1, conditioning and norms of atoms, layer by layer."""
    figure = new_figure(10, 2.5)
    panels = figure.subplots(1, 4)
    numbers = [layer.stage.number for layer in health]
    rows: list[tuple[str, list[float], bool]] = [
        ("active codes (%)", [_or_nan(layer.active, 100) for layer in health], False),
        ("lam1", [_or_nan(layer.lam1) for layer in health], False),
        ("condition of the Gram matrix", [_or_nan(layer.condition) for layer in health], True),
        ("norms of atoms", [layer.largest_norm for layer in health], False),
    ]
    for axes, (title, values, logarithmic) in zip(panels, rows, strict=True):
        axes.plot(numbers, values, marker="o", markersize=3, color=OURS)
        finite = [value for value in values if np.isfinite(value)]
        if logarithmic and finite:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter("")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_ylim(1, max(10.0, 10 ** np.ceil(np.log10(max(finite)))))
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=7, which="both")
        axes.xaxis.get_major_locator().set_params(integer=True)
        _plain(axes)
    smallest = [layer.smallest_norm for layer in health]
    panels[3].fill_between(numbers, smallest, rows[3][1], color=OURS, alpha=0.25)
    return figure


def draw_confusion(confusion: Tensor, classes: Sequence[str]) -> "Figure":
    """Which classes are taken for which; the right answers, far more frequent, are left white."""
    n_classes = len(classes)
    side = min(11.0, 2.2 + 0.5 * n_classes)
    figure = new_figure(side + 1, side)
    axes = figure.subplots()
    mistakes = confusion.double().clone()
    mistakes.fill_diagonal_(float("nan"))
    most = float(mistakes.nan_to_num().max())
    axes.imshow(mistakes.numpy(), cmap="Oranges", vmin=0, vmax=max(1.0, most))
    if n_classes <= 20:
        for row in range(n_classes):
            for column in range(n_classes):
                count = int(confusion[row, column])
                if count:
                    colour = "white" if row != column and count > 0.6 * most else "black"
                    axes.text(column, row, str(count), ha="center", va="center", fontsize=8, color=colour)
        axes.set_xticks(range(n_classes), [_short(name) for name in classes], rotation=45, ha="right", fontsize=8)
        axes.set_yticks(range(n_classes), [_short(name) for name in classes], fontsize=8)
    axes.set(xlabel="answer", ylabel="truth")
    return figure


def draw_mistakes(network: Network, found: WithImages) -> "Figure":
    """The most confident errors, each with the atoms that spoke most for the wrong answer."""
    rows = found.misled
    figure = new_figure(9, 1.75 * max(1, len(rows)))
    panels = np.atleast_2d(figure.subplots(max(1, len(rows)), 4, width_ratios=[1, 1.3, 1.3, 1.3]))
    for line, misled in zip(panels, rows, strict=False):
        _draw_mistake(line, network, found, misled)
    return figure


def _draw_mistake(line: Any, network: Network, found: WithImages, misled: Misled) -> None:
    classes, mistake = network.classes or (), misled.mistake
    answer, truth = _short(classes[mistake.answer]), _short(classes[mistake.truth])
    title = f"{answer} ({100 * mistake.share:.0f} %)\nis {truth}"
    _show(line[0], as_picture(misled.image), title, size=8)
    use = found.survey.layers[-1]
    for axes, atom in zip(line[1:], misled.excess.topk(min(3, len(misled.excess))).indices.tolist(), strict=False):
        codes = misled.codes[atom]
        row, column = divmod(int(codes.abs().argmax()), codes.shape[1])
        place = AtomUse(mistake.image, row, column, float(codes[row, column]))
        seen = enlarge(as_picture(misled.image), 3 * TILE + 2, _marked(found.survey, use.stage, place))
        pair = grid([seen, _patches(found.survey, use, atom)], 2, gap=4)
        _show(axes, pair, f"atom {atom}: {float(misled.excess[atom]):+.1f}", size=8)
    for axes in line[1:]:
        axes.axis("off")


def _patches(survey: Survey, use: LayerUse, atom: int) -> Picture:
    """The nine patches that use an atom most: cut out, or framed in their image where the field is large."""
    stage, pictures = use.stage, []
    largest = min(survey.images.images.shape[2:]) // 2
    for found in strongest_uses(use, atom, 9):
        if stage.field.size <= largest:
            pictures.append(enlarge(as_picture(crop(survey.images, found, stage)), TILE))
        else:
            image = as_picture(survey.images.images[found.image])
            pictures.append(enlarge(image, TILE, _marked(survey, stage, found)))
    return grid([*pictures, *[blank(TILE)] * (9 - len(pictures))], 3)


def _marked(survey: Survey, stage: Stage, found: AtomUse) -> Box:
    """What to frame: the pixels that a position sees, or the middle of them where it sees more than the image."""
    whole = min(survey.images.images.shape[2:])
    return found.box(stage) if stage.field.size < whole else stage.field.middle(found.row, found.column)


def _sheet(
    sheet: Picture,
    labels: Sequence[str] = (),
    top: Sequence[str] = (),
    columns: int = 1,
    gap: int = 0,
) -> "Figure":
    """An array as a figure of its own size, with a label at every cell or above every column."""
    height, width = sheet.shape[:2]
    head = 16
    figure = new_figure(width / DPI, (height + head) / DPI)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, height / (height + head)))
    axes.imshow(sheet, interpolation="nearest", aspect="auto")
    axes.axis("off")
    cell_width = (width + gap) / columns
    for column, name in enumerate(top):
        axes.text(column * cell_width + (cell_width - gap) / 2, -3, name, ha="center", va="bottom", fontsize=8)
    n_rows = -(-len(labels) // columns)
    cell_height = (height + gap) / max(1, n_rows)
    for index, name in enumerate(labels):
        row, column = divmod(index, columns)
        axes.text(column * cell_width, row * cell_height - 1, name, ha="left", va="bottom", fontsize=7, color="#555")
    return figure


def _draw_places(axes: "Axes", example: Example, answer: int, title: str) -> None:
    """The image in grey with the places that speak for an answer in red, and against it in blue."""
    places = example.evidence.places(0, answer)
    places = places - places.mean()
    height, width = example.image.shape[1:]
    axes.imshow(as_picture(example.image).mean(2), cmap="gray", extent=(0, width, height, 0))
    limit = max(float(places.abs().max()), 1e-12)
    # A place is drawn in the middle of the pixels that it sees.
    field = example.looks[-1].stage.field
    top, left, *_ = field.middle(0, 0)
    *_, bottom, right = field.middle(places.shape[0] - 1, places.shape[1] - 1)
    axes.imshow(
        places.numpy(),
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
        alpha=0.55,
        extent=(left, right, bottom, top),
        interpolation="bilinear",
    )
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_title(title, fontsize=9)
    axes.axis("off")


def _draw_deciding_atoms(axes: "Axes", example: Example, first: int, second: int, classes: Sequence[str]) -> None:
    """The atoms of the last layer that tell the answer from the runner-up."""
    atoms = example.evidence.atoms()[0]
    apart = atoms[first] - atoms[second]
    chosen = apart.abs().topk(min(12, len(apart))).indices
    chosen = chosen[apart[chosen].argsort(descending=True)]
    values = apart[chosen].tolist()
    colours = [OURS if value > 0 else TWINS for value in values]
    axes.bar(range(len(values)), values, color=colours)
    axes.set_xticks(range(len(values)), [str(atom) for atom in chosen.tolist()], fontsize=7)
    axes.axhline(0, color="#444", linewidth=0.6)
    names = f"{_short(classes[first])} rather than {_short(classes[second])}"
    axes.set_title(f"atoms of the last layer: {names}", fontsize=9)
    axes.set_ylabel("added to the score", fontsize=8)
    _plain(axes)


def _draw_centres(axes: "Axes", use: LayerUse) -> None:
    axes.set_title(f"layer {use.stage.number}: {use.stage.width} atoms", fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    codes, patches = use.places.codes.float(), use.places.patches.float()
    used = (codes.abs().amax(1) > 0) & patches.isfinite().all(1)
    codes, patches = codes[used][:1500], patches[used][:1500]
    if len(codes) < 2:
        return
    strongest = codes.abs().argmax(1)
    mean = patches.mean(0)
    directions = torch.linalg.svd(patches - mean, full_matrices=False).Vh[:2].T
    points = (patches - mean) @ directions
    # An atom at the size it has on average where it is the strongest.
    sizes = torch.stack([codes[strongest == j, j].mean() for j in range(codes.shape[1])])
    centres = (use.stage.atoms().flatten(1).float() * sizes[:, None] - mean) @ directions
    colours: dict[str, Any] = {"cmap": "tab20", "vmin": 0, "vmax": len(sizes) - 1}
    axes.scatter(
        points[:, 0].numpy(), points[:, 1].numpy(), c=strongest.numpy(), s=5, alpha=0.6, linewidths=0, **colours
    )
    known = sizes.isfinite()
    axes.scatter(
        centres[known, 0].numpy(),
        centres[known, 1].numpy(),
        c=torch.arange(len(sizes))[known].numpy(),
        **colours,
        marker="*",
        s=130,
        edgecolors="black",
        linewidths=0.7,
    )


def _lines(
    axes: "Axes",
    scores: list[ClusterScores | None],
    name: str,
    colour: str,
    style: str,
    label: str,
    mark: Sequence[int] = (),
) -> None:
    numbers = range(1, len(scores) + 1)
    values = [float("nan") if part is None else getattr(part, name) for part in scores]
    axes.plot(numbers, values, color=colour, linestyle=style, label=label, linewidth=1.5)
    if mark:
        axes.plot(mark, [values[n - 1] for n in mark], "o", color=colour, markersize=5, label="slim layers")


def _show(axes: "Axes", picture: Picture, title: str, size: int = 9) -> None:
    axes.imshow(picture, interpolation="nearest")
    axes.set_title(title, fontsize=size)
    axes.axis("off")


def _plain(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _rgb(colour: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return red, green, blue


def _short(name: str) -> str:
    """A name without what matplotlib would take for a formula, cut to a length that fits."""
    name = name.replace("$", r"\$")
    return name if len(name) <= 14 else f"{name[:13]}…"


def _or_nan(value: float | None, factor: float = 1) -> float:
    return float("nan") if value is None else factor * value
