"""The charts of a report. Every function takes findings and returns a matplotlib figure; nothing is computed here."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from torchscn.inspect.canvas import GREY, OURS, TWINS, new_figure, plain, short, show
from torchscn.inspect.clusters import ClusterScores
from torchscn.inspect.findings import Example, Findings, WithImages, slim_and_wide
from torchscn.inspect.health import LayerHealth
from torchscn.inspect.separation import Probe
from torchscn.inspect.stages import Stage
from torchscn.inspect.surveys import LayerUse
from torchscn.inspect.tiles import as_picture
from torchscn.network import Network
from torchscn.training.curves import plot_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "draw_centres",
    "draw_clusters",
    "draw_confusion",
    "draw_curve",
    "draw_example",
    "draw_health",
    "draw_network",
    "draw_separation",
]


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
    plain(axes)
    return figure


def draw_curve(metrics: list[dict[str, Any]]) -> "Figure":
    """Training and test error over the epochs."""
    figure = new_figure(6.4, 3.4)
    axes = figure.subplots()
    plot_errors(axes, metrics, OURS)
    plain(axes)
    return figure


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
    show(picture, as_picture(example.image), f"truth: {short(classes[example.truth])}")
    share = float(scores.double().softmax(0)[first])
    _draw_places(places, example, first, f"for {short(classes[first])} ({100 * share:.0f} %)")
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
        plain(axes)
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
        plain(axes)
    return figure


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
    plain(axes)
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
        plain(axes)
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
        axes.set_xticks(range(n_classes), [short(name) for name in classes], rotation=45, ha="right", fontsize=8)
        axes.set_yticks(range(n_classes), [short(name) for name in classes], fontsize=8)
    axes.set(xlabel="answer", ylabel="truth")
    return figure


def _draw_places(axes: "Axes", example: Example, answer: int, title: str) -> None:
    """The image in grey with the places that speak for an answer in red, and against it in blue."""
    places = example.evidence.places(0, answer)
    places = places - places.mean()
    height, width = example.image.shape[1:]
    axes.imshow(as_picture(example.image).mean(2), cmap="gray", extent=(0, width, height, 0))
    limit = max(float(places.abs().max()), 1e-12)
    # A place is drawn in the middle of the pixels that it sees. These middles need not reach the image's edges, so that
    # the outermost places are drawn once more outside of them.
    field = example.looks[-1].stage.field
    top, left, *_ = field.middle(0, 0)
    *_, bottom, right = field.middle(places.shape[0] - 1, places.shape[1] - 1)
    axes.imshow(
        pad(places[None], (1, 1, 1, 1), mode="replicate")[0].numpy(),
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
        alpha=0.55,
        extent=(left - field.step, right + field.step, bottom + field.step, top - field.step),
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
    names = f"{short(classes[first])} rather than {short(classes[second])}"
    axes.set_title(f"atoms of the last layer: {names}", fontsize=9)
    axes.set_ylabel("added to the score", fontsize=8)
    plain(axes)


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


def _rgb(colour: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return red, green, blue


def _or_nan(value: float | None, factor: float = 1) -> float:
    return float("nan") if value is None else factor * value
