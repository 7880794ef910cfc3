"""The report: findings, pictures and what they mean, written to a folder."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchscn.atomic import replace_file
from torchscn.inspect import figures, sheets
from torchscn.inspect.canvas import as_png
from torchscn.inspect.clusters import ClusterScores
from torchscn.inspect.findings import Findings, WithImages, slim_and_wide
from torchscn.inspect.page import figure, note, page, paragraph, table
from torchscn.inspect.stages import Stage
from torchscn.training.run_folder import count_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["About", "write_report"]

REPORT = "report.html"
NUMBERS = "findings.json"
HOLDS = 0.5  # share of the way from random directions to k-means above which a layer counts as clustering
HOLDS_WEAKLY = 0.25
CROWD = 10  # positions for every atom, with fewer of which groups say nothing


@dataclass(frozen=True)
class About:
    """What a report says about a network that the network does not know itself."""

    name: str
    data: str = ""
    images: str = "test images"  # what the images are that the report is about
    note: str | None = None  # for instance that the run is not finished
    twin: str | None = None  # name of the twin it is compared with
    metrics: list[dict[str, Any]] = field(default_factory=list)  # one entry per epoch
    no_images: str | None = None  # why there are no images


@dataclass(frozen=True)
class _Writer:
    """Turns figures into files and HTML."""

    folder: Path
    progress: Callable[[str], None]

    def picture(self, name: str, drawn: "Figure", caption: str) -> str:
        self.progress(name)
        png = as_png(drawn)
        replace_file(self.folder / f"{name}.png", [png])
        return figure(png, caption)


def write_report(
    findings: Findings, about: About, folder: str | Path, progress: Callable[[str], None] | None = None
) -> Path:
    """Write ``report.html`` with everything inside, every picture as PNG, and the numbers as ``findings.json``.

    Args:
        findings: from :func:`inspect_network`.
        about: the name of the network and where it is from.
        folder: created if it does not exist; files of an older report are replaced.
        progress: called with the name of every picture before it is drawn.

    Returns:
        The path of ``report.html``.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    writer = _Writer(folder, progress or (lambda name: None))
    found = findings.with_images
    sections = [("At a glance", _glance(writer, findings, about)), ("Atoms", _atoms(writer, findings))]
    if found is not None:
        sections += [
            ("What is left of the image", _rebuilt(writer, findings, found)),
            ("One image through the network", _examples(writer, findings, found)),
            ("Clusters", _clusters(writer, findings, found, about)),
            ("Separation", _separation(writer, findings, found, about)),
        ]
    sections.append(("Health", _health(writer, findings)))
    if found is not None:
        sections.append(("Mistakes", _mistakes(writer, findings, found)))
    html = page(f"Inside {about.name}", _facts(findings, about), sections)
    replace_file(folder / NUMBERS, [(json.dumps(_numbers(findings, about), indent=1, allow_nan=False) + "\n").encode()])
    replace_file(folder / REPORT, [html.encode()])
    return folder / REPORT


def _numbers(findings: Findings, about: About) -> dict[str, Any]:
    return {"name": about.name, "data": about.data, "twin": about.twin} | findings.numbers()


def _facts(findings: Findings, about: About) -> str:
    n_layers = len(findings.stages)
    facts = [f"{n_layers} layer{'s' if n_layers > 1 else ''}", f"{count_parameters(findings.network):,} parameters"]
    if about.data:
        facts.append(f"trained on {about.data}")
    if findings.with_images is not None:
        answers = findings.with_images.answers
        facts.append(f"error {answers.error:.2f} % ({len(answers.images):,} {about.images})")
    return " · ".join(facts)


def _glance(writer: _Writer, findings: Findings, about: About) -> str:
    parts = []
    if about.note:
        parts.append(note(about.note))
    if findings.with_images is None:
        why = about.no_images or "No images were given."
        parts.append(
            note(
                f"Only the weights are looked at here. {why} With test images the report also shows which "
                "patches use an atom, rebuilt images, clusters, separation and mistakes."
            )
        )
    caption = (
        "The layers from left to right, as high as they have atoms. A position of a layer sees a square of that many "
        "pixels; darker layers have fewer positions."
    )
    parts.append(writer.picture("network", figures.draw_network(findings), caption))
    if findings.with_images is not None and findings.with_images.certificates:
        parts.append(
            paragraph(
                "Certificates: codes are solutions of an optimisation problem, so it can be checked how far they are "
                "from the best ones. Residuals are relative to the largest code."
            )
        )
        parts.append(_certificates(findings, findings.with_images))
    if about.metrics:
        drawn = figures.draw_curve(about.metrics)
        parts.append(writer.picture("curve", drawn, "Error over the epochs of training."))
    return "\n".join(parts)


def _certificates(findings: Findings, found: WithImages) -> str:
    numbers = {stage.name: stage.number for stage in findings.stages}
    rows = [
        (
            str(numbers[c.name]),
            f"{c.iterations:.1f}",
            f"{c.residual:.1e}",
            "-" if c.converged is None else f"{100 * c.converged:.1f}",
            f"{100 * c.active:.1f}",
            f"{c.lam1:.3g}",
        )
        for c in found.certificates
    ]
    return table(("layer", "iterations", "residual", "converged %", "active %", "lam1"), rows)


def _atoms(writer: _Writer, findings: Findings) -> str:
    found = findings.with_images
    sparse = all(stage.is_sparse for stage in findings.stages)
    parts = [
        paragraph(
            "The first layer codes pixels, so its atoms are small images (grey is zero). Deeper atoms are shown in two "
            "ways: left what a code of 1 for this atom says about the pixels below, synthesised down through the "
            "dictionaries; right the nine patches that use it most, each from another image."
            if sparse
            else "Filters of the first layer, and for every layer the patches to which a channel responds most, each "
            "from another image. A convolution has no inverse, so nothing can be synthesised."
        ),
        writer.picture("atoms-first", sheets.draw_first_atoms(findings), "The first layer's atoms as images."),
    ]
    for stage in findings.stages:
        use = found.survey.layers[stage.number - 1] if found else None
        if use is None and not stage.is_sparse:
            continue
        drawn = sheets.draw_atoms(findings.network, use, found.survey if found else None, stage)
        parts.append(writer.picture(f"atoms-{stage.number:02d}", drawn, _atoms_caption(stage, found is not None)))
    return "\n".join(parts)


def _atoms_caption(stage: Stage, has_images: bool) -> str:
    shown = min(sheets.MOST_ATOMS, stage.width)
    which = "all" if shown == stage.width else f"the {shown} most used of"
    if not has_images and shown < stage.width:
        which = f"the first {shown} of"
    seen = f"A position sees {stage.field.size} x {stage.field.size} pixels"
    return (
        f"Layer {stage.number}, {which} {stage.width} atoms with their numbers. {seen}; where that is much of the "
        "image, the whole image is shown with the seen part framed, or its middle."
    )


def _rebuilt(writer: _Writer, findings: Findings, found: WithImages) -> str:
    if not found.rebuilt:
        return note(findings.left_out["rebuilt"])
    text = (
        "The input rebuilt from the codes of one layer alone: every layer rebuilds its patches from its atoms, pixels "
        "take the average of the patches that cover them, batch norms are undone. A convolutional twin has no such "
        "inverse of its own: its weights say what a channel responds to, not what it stands for."
    )
    caption = (
        "Rebuilt from the codes of layer 1, 2, ... What all rebuilt images have in common is subtracted and the "
        "contrast is that of the original, or deep layers would be flat; errors in the table are without that help."
    )
    rows = [
        (
            str(part.stage.number),
            f"{float(part.error.mean()):.2f}",
            f"{float(part.likeness.mean()):.2f}",
            f"{float(part.active.mean()):.1f} of {part.stage.width}",
        )
        for part in found.rebuilt
    ]
    head = ("layer", "relative error", "correlation", "active atoms per position")
    picture = writer.picture("rebuilt", sheets.draw_rebuilt(findings.network, found), caption)
    return "\n".join([paragraph(text), picture, table(head, rows), paragraph(_rebuilt_verdict(found))])


def _rebuilt_verdict(found: WithImages) -> str:
    gone = [part.stage.number for part in found.rebuilt if float(part.likeness.mean()) < 0.5]
    if not gone:
        return "The image can be recognised from the codes of every layer (correlation of at least 0.5)."
    if gone[0] == 1:
        return "Not even the codes of the first layer rebuild the image (correlation below 0.5)."
    return (
        f"By this way back the image can be recognised up to layer {gone[0] - 1}; from layer {gone[0]} on the "
        "correlation is below 0.5. Layers are trained to tell classes apart, not to keep pixels."
    )


def _examples(writer: _Writer, findings: Findings, found: WithImages) -> str:
    parts = [
        paragraph(
            "A clear case, a doubtful one that is right, and the most confident error. Scores are sums over the atoms "
            "of the last layer, and over places, so it can be said exactly what each of them added. Red places speak "
            "for the answer more than the average place, blue ones less. Below: active atoms at every place, layer by "
            "layer (brighter is more), and how large the codes are (logarithmic counts)."
        )
    ]
    for number, example in enumerate(found.examples, start=1):
        drawn = figures.draw_example(findings.network, example)
        caption = f"Example {number}: bars upwards are atoms that speak for the answer, rather than the runner-up."
        parts.append(writer.picture(f"example-{number}", drawn, caption))
    return "\n".join(parts)


def _clusters(writer: _Writer, findings: Findings, found: WithImages, about: About) -> str:
    if not found.clusters:
        return note(findings.left_out.get("clusters", "There are no clusters to compare."))
    slim, _ = slim_and_wide(findings.stages)
    text = (
        "The paper says that slim layers cluster: atoms are cluster centres, codes say how near a patch is to each. "
        "Put to the test: every position belongs to its strongest atom, and these groups are compared with k-means of "
        "the same patches with as many clusters as atoms. Adjusted mutual information is 1 for equal groups and 0 for "
        "unrelated ones. Two runs of k-means show what to expect of a clustering, random directions what of none."
    )
    caption = (
        "Left: agreement with k-means. Right: purity, the share of positions whose class is the most frequent one of "
        "their group. " + ("Dots mark slim layers. " if slim else "") + _twin_words(found, about)
    )
    chosen = slim or [stage.number for stage in findings.stages]
    layers = list(dict.fromkeys([chosen[0], chosen[len(chosen) // 2]]))
    groups = "Atoms of the first layer, and below each the mean of the patches whose strongest atom it is."
    centres = (
        "Atoms as cluster centres? Patches of two layers in their two main directions, coloured by strongest atom; "
        "stars are the atoms, as long as their mean code where they are the strongest."
    )
    return "\n".join(
        [
            paragraph(text),
            note(_cluster_verdict(findings, found)),
            writer.picture("clusters", figures.draw_clusters(found, findings.stages), caption),
            writer.picture("group-centres", sheets.draw_group_centres(found.survey.layers[0]), groups),
            writer.picture("centres", figures.draw_centres(found, layers), centres),
            _cluster_table(found.clusters),
        ]
    )


def _twin_words(found: WithImages, about: About) -> str:
    return f"The twin is {about.twin}." if found.twin is not None else "No twin was given (--twin), so none is shown."


def _mean(scores: list[ClusterScores | None], name: str, layers: list[int] | None = None) -> float:
    """The mean of a score over layers."""
    values = [
        getattr(part, name)
        for number, part in enumerate(scores, start=1)
        if part is not None and (layers is None or number in layers)
    ]
    return sum(values) / len(values) if values else float("nan")


def _cluster_verdict(findings: Findings, found: WithImages) -> str:
    """What the scores say about the claim, plainly."""
    crowded = [
        scores is not None and scores.n_positions >= CROWD * stage.width
        for scores, stage in zip(found.clusters, findings.stages, strict=True)
    ]
    if not all(crowded):
        return "There are too few positions with active atoms to judge the claim: it takes ten for every atom."
    slim, wide = slim_and_wide(findings.stages)
    chosen = slim or None
    agreement, floor, ceiling, dominance, cosine = (
        _mean(found.clusters, name, chosen) for name in ("agreement", "floor", "ceiling", "dominance", "centre_cosine")
    )
    way = _way(found.clusters, chosen)
    verdict = "holds" if way > HOLDS else "holds only weakly" if way > HOLDS_WEAKLY else "does not hold"
    which = "slim layers" if slim else "the layers (none of them is slim beside its neighbours)"
    sentences = [
        f"The claim {verdict} here: the strongest atoms of {which} agree with k-means at {agreement:.2f}, random "
        f"directions at {floor:.2f}, two runs of k-means at {ceiling:.2f}. That is {100 * way:.0f} % of the way."
    ]
    if wide:
        sentences.append(f"Wide layers go {100 * _way(found.clusters, wide):.0f} % of it.")
    if found.twin_clusters:
        sentences.append(f"The same layers of the twin go {100 * _way(found.twin_clusters, chosen):.0f} % of it.")
    sentences.append(
        f"The strongest atom has {100 * dominance:.0f} % of the sum of a code on average, and its cosine with the "
        f"centre of its group is {cosine:.2f}."
    )
    return " ".join(sentences)


def _way(scores: list[ClusterScores | None], layers: list[int] | None) -> float:
    """How far groups are on the way from random directions to k-means: 0 to 1."""
    agreement, floor, ceiling = (_mean(scores, name, layers) for name in ("agreement", "floor", "ceiling"))
    return (agreement - floor) / (ceiling - floor) if ceiling > floor else float("nan")


def _cluster_table(scores: list[ClusterScores | None]) -> str:
    names = ("agreement", "by_direction", "ceiling", "floor", "purity", "purity_kmeans", "centre_cosine", "dominance")
    head = (
        "layer",
        "agreement",
        "by direction",
        "k-means twice",
        "random",
        "purity",
        "purity of k-means",
        "cosine with centre",
        "dominance",
    )
    rows = [
        (str(number), *("-" if part is None else f"{getattr(part, name):.2f}" for name in names))
        for number, part in enumerate(scores, start=1)
    ]
    return table(head, rows)


def _separation(writer: _Writer, findings: Findings, found: WithImages, about: About) -> str:
    if not found.probes:
        return note(findings.left_out.get("separation", "There is nothing to compare."))
    text = (
        "The paper says that classes become gradually linearly separable with depth. A linear classifier gets the "
        "codes of one layer averaged over positions; it is fitted to half of the images and tested on the other half, "
        "and back."
    )
    first, last = found.probes[0].error, found.probes[-1].error
    falls = sum(later.error < earlier.error for earlier, later in zip(found.probes, found.probes[1:], strict=False))
    words = (
        f"From {first:.1f} % on the averaged pixels to {last:.1f} % at the last layer; the error falls in {falls} of "
        f"{len(found.probes) - 1} steps."
    )
    if found.twin_probes:
        words += f" The twin ends at {found.twin_probes[-1].error:.1f} %."
    drawn = figures.draw_separation(found.probes, found.twin_probes, found.answers.error)
    caption = f"Bars are standard errors from {len(found.survey.images):,} images. {_twin_words(found, about)}"
    return "\n".join([paragraph(text), note(words), writer.picture("separation", drawn, caption)])


def _health(writer: _Writer, findings: Findings) -> str:
    concerns = [concern for layer in findings.health for concern in layer.concerns()]
    caption = "Layer by layer; norms of atoms from the smallest to the largest."
    parts = [writer.picture("health", figures.draw_health(findings.health), caption)]
    if concerns:
        rows = [(str(concern.layer), concern.finding, concern.advice) for concern in concerns]
        parts.append(table(("layer", "what was found", "what to do about it"), rows, text_columns=(0, 1, 2)))
    else:
        known = "dead or " if findings.with_images else ""
        sparse = any(stage.is_sparse for stage in findings.stages)
        words = "atoms, dictionaries well conditioned" if sparse else "channels"
        parts.append(paragraph(f"Nothing to worry about: no {known}duplicate {words}."))
    return "\n".join(parts)


def _mistakes(writer: _Writer, findings: Findings, found: WithImages) -> str:
    classes = found.answers.images.classes
    parts = [
        writer.picture(
            "confusion",
            figures.draw_confusion(found.answers.confusion(), classes),
            f"What is taken for what: {found.answers.error:.2f} % of {len(found.answers.images):,} answers are wrong.",
        )
    ]
    if found.misled:
        caption = (
            "The most confident errors. Beside each the three atoms of the last layer that spoke most for the wrong "
            "answer rather than the truth (in units of the score): where in the image, and the patches that use this "
            "atom most."
        )
        parts.append(writer.picture("mistakes", sheets.draw_mistakes(findings.network, found), caption))
    else:
        parts.append(paragraph("There are no mistakes."))
    return "\n".join(parts)
