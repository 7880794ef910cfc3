"""Pictures of a report that are made of small images: atoms, patches, rebuilt images, mistakes. Nothing is computed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchscn.inspect.canvas import DPI, new_figure, short, show
from torchscn.inspect.findings import Findings, Misled, WithImages
from torchscn.inspect.inverse import NoInverseError, synthesize, to_pixels
from torchscn.inspect.stages import Stage
from torchscn.inspect.surveys import LayerUse, Survey
from torchscn.inspect.tiles import Box, Picture, as_picture, atom_picture, blank, enlarge, grid, stretched
from torchscn.inspect.uses import AtomUse, crop, most_used, strongest_uses
from torchscn.network import Network

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MOST_ATOMS", "draw_atoms", "draw_first_atoms", "draw_group_centres", "draw_mistakes", "draw_rebuilt"]

MOST_ATOMS = 24  # of a layer in one picture: those used most
TILE = 36  # pixels of the side of a small patch


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
    answer, truth = short(classes[mistake.answer]), short(classes[mistake.truth])
    title = f"{answer} ({100 * mistake.share:.0f} %)\nis {truth}"
    show(line[0], as_picture(misled.image), title, size=8)
    use = found.survey.layers[-1]
    for axes, atom in zip(line[1:], misled.excess.topk(min(3, len(misled.excess))).indices.tolist(), strict=False):
        codes = misled.codes[atom]
        row, column = divmod(int(codes.abs().argmax()), codes.shape[1])
        place = AtomUse(mistake.image, row, column, float(codes[row, column]))
        seen = enlarge(as_picture(misled.image), 3 * TILE + 2, _marked(found.survey, use.stage, place))
        pair = grid([seen, _patches(found.survey, use, atom)], 2, gap=4)
        show(axes, pair, f"atom {atom}: {float(misled.excess[atom]):+.1f}", size=8)
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
