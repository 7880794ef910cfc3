"""Everything a report says, as numbers: :func:`inspect_network` computes it, and nothing here draws."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchscn.certificates import LayerCertificate, certify, spread_sample
from torchscn.data import ImageSet
from torchscn.inspect.clusters import ClusterScores, compare_with_kmeans
from torchscn.inspect.evidence import Evidence, weigh
from torchscn.inspect.health import LayerHealth, examine
from torchscn.inspect.inverse import NoInverseError, Rebuilt, rebuild_all
from torchscn.inspect.mistakes import Answers, Mistake, answer
from torchscn.inspect.separation import Probe, probe_layers
from torchscn.inspect.stages import Look, Stage, dissect, look
from torchscn.inspect.surveys import Survey, check_images, some_images, survey
from torchscn.network import Network

__all__ = [
    "N_IMAGES",
    "Example",
    "Findings",
    "Misled",
    "Report",
    "WithImages",
    "check_inspectable",
    "inspect_network",
    "slim_and_wide",
]

N_IMAGES = 4000  # images looked at closely; all are used for the error
N_REBUILT = 32
FEW_TO_REBUILD = 8  # images; with fewer, what they have in common cannot be told from what is their own
N_SHOWN = 6  # rebuilt images in the picture
N_EXAMPLES = 3
N_MISTAKES = 6

Report = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Example:
    """One image on its way through the network."""

    image: Tensor  # uint8 (channels, height, width)
    truth: int
    looks: tuple[Look, ...]
    evidence: Evidence


@dataclass(frozen=True)
class Misled:
    """A confident error, and what every atom added to the wrong answer more than to the right one."""

    mistake: Mistake
    image: Tensor
    excess: Tensor  # (width of the last layer,)
    codes: Tensor  # of the last layer, (width, height, width)


@dataclass(frozen=True)
class WithImages:
    """What takes images to find out."""

    answers: Answers
    certificates: list[LayerCertificate]
    survey: Survey
    twin: Survey | None
    rebuilt: list[Rebuilt]  # empty for a network with convolutions
    originals: Tensor  # the images that were rebuilt, preprocessed
    shown: list[int]  # which of them are worth a picture: of different classes
    examples: list[Example]
    misled: list[Misled]
    clusters: list[ClusterScores | None]
    twin_clusters: list[ClusterScores | None]
    probes: list[Probe]
    twin_probes: list[Probe]


@dataclass(frozen=True)
class Findings:
    """What was found out about a network."""

    network: Network
    health: list[LayerHealth]
    with_images: WithImages | None
    left_out: dict[str, str] = field(default_factory=dict)  # part of the report -> why it is missing

    @property
    def stages(self) -> tuple[Stage, ...]:
        return dissect(self.network).stages

    def numbers(self) -> dict[str, Any]:
        """The findings as a table for JSON."""
        found: dict[str, Any] = {"layers": [_layer_numbers(layer) for layer in self.health], "left_out": self.left_out}
        if self.with_images is not None:
            found |= _image_numbers(self.with_images)
        cleaned: dict[str, Any] = _finite(found)
        return cleaned


def inspect_network(
    network: Network,
    images: ImageSet | None = None,
    *,
    twin: Network | None = None,
    n_images: int = N_IMAGES,
    report: Report | None = None,
) -> Findings:
    """Find out everything that the report shows.

    Args:
        network: a trained network.
        images: labelled images that it was not trained on; without them only its weights are examined.
        twin: a network of the same shape with convolutions, to compare with.
        n_images: how many images are looked at closely; the error is that of all.
        report: called with what is being done, how much of it is done, and how much there is.
    """
    check_inspectable(network, twin)
    if images is None:
        return Findings(network, examine(network), None)
    left_out: dict[str, str] = {}
    found = _with_images(network, images, twin, n_images, report or _silent, left_out)
    return Findings(network, examine(network, found.survey, found.certificates), found, left_out)


def check_inspectable(network: Network, twin: Network | None = None) -> None:
    """Refuse networks that cannot be taken apart, before anybody waits for the parts that come first."""
    dissect(network)
    if twin is not None:
        try:
            dissect(twin)
        except TypeError as error:
            raise TypeError(f"the twin cannot be inspected: {error}") from error


def slim_and_wide(stages: tuple[Stage, ...]) -> tuple[list[int], list[int]]:
    """Numbers of the layers that are narrower than their neighbours, and of those that are wider.

    A network has slim layers only if there are several; a narrow first layer alone makes none.

    Example:
        >>> from torchscn import create_model
        >>> slim_and_wide(dissect(create_model("scn4")).stages)[0]
        [1, 3, 5, 7, 9, 11, 13]
        >>> slim_and_wide(dissect(create_model("scn1")).stages)
        ([], [])
    """
    widths = [stage.width for stage in stages]
    slim, wide = [], []
    for index, width in enumerate(widths):
        beside = widths[max(0, index - 1) : index] + widths[index + 1 : index + 2]
        if beside and width < min(beside):
            slim.append(index + 1)
        if beside and width > max(beside):
            wide.append(index + 1)
    return (slim, wide) if len(slim) > 1 else ([], [])


def _silent(what: str, done: int, total: int) -> None:
    pass


def _with_images(
    network: Network, images: ImageSet, twin: Network | None, n_images: int, report: Report, left_out: dict[str, str]
) -> WithImages:
    some = some_images(images, n_images)
    answers = answer(network, images, lambda done: report("answering", done, len(images)))
    seen = survey(network, some, progress=lambda done: report("looking at codes", done, len(some)))
    other = None
    if twin is not None:
        _check_twin(twin, images)
        other = survey(twin, some, progress=lambda done: report("looking at the twin", done, len(some)))
    sample = network.preprocess(spread_sample(images.images))
    few = some_images(images, N_REBUILT)
    originals = network.preprocess(few.images)
    clusters, twin_clusters = (_clusters(part, report, left_out) for part in (seen, other))
    probes, twin_probes = (_probes(part, report, left_out) for part in (seen, other))
    return WithImages(
        answers=answers,
        certificates=certify(network, sample),
        survey=seen,
        twin=other,
        rebuilt=_rebuilt(network, originals, left_out),
        originals=originals,
        shown=_one_per_class(few, N_SHOWN),
        examples=[_example(network, images, index) for index in _examples(answers)],
        misled=[_misled(network, images, mistake) for mistake in answers.mistakes(N_MISTAKES)],
        clusters=clusters,
        twin_clusters=twin_clusters,
        probes=probes,
        twin_probes=twin_probes,
    )


def _check_twin(twin: Network, images: ImageSet) -> None:
    try:
        check_images(twin, images)
    except ValueError as error:
        raise ValueError(f"the twin does not go with these images: {error}") from error


def _one_per_class(images: ImageSet, n_images: int) -> list[int]:
    """The first image of each of the first classes."""
    return [int((images.labels == label).nonzero()[0]) for label in images.labels.unique()[:n_images]]


def _examples(answers: Answers) -> list[int]:
    """A clear case, a doubtful one that is right, and the most confident error (if there is one)."""
    shares, found = answers.scores.double().softmax(1).max(1)
    right = (found == answers.images.labels).nonzero().flatten()
    chosen = [mistake.image for mistake in answers.mistakes(1)]
    if len(right):
        chosen = [int(right[shares[right].argmax()]), int(right[shares[right].argmin()]), *chosen]
    return list(dict.fromkeys(chosen))[:N_EXAMPLES]


def _example(network: Network, images: ImageSet, index: int) -> Example:
    x = network.preprocess(images.images[index : index + 1])
    looks = tuple(look(network, x))
    return Example(images.images[index], int(images.labels[index]), looks, weigh(network, looks[-1].codes))


def _misled(network: Network, images: ImageSet, mistake: Mistake) -> Misled:
    example = _example(network, images, mistake.image)
    atoms = example.evidence.atoms()[0]
    excess = atoms[mistake.answer] - atoms[mistake.truth]
    return Misled(mistake, example.image, excess, example.evidence.codes[0])


def _rebuilt(network: Network, x: Tensor, left_out: dict[str, str]) -> list[Rebuilt]:
    if len(x) < FEW_TO_REBUILD:
        left_out["rebuilt"] = f"There are too few images to tell what they have in common ({len(x)})."
        return []
    try:
        return rebuild_all(network, x)
    except NoInverseError as error:
        left_out["rebuilt"] = f"This network cannot rebuild its input: {error}"
        return []


def _clusters(part: Survey | None, report: Report, left_out: dict[str, str]) -> list[ClusterScores | None]:
    if part is None:
        return []
    scores = []
    try:
        for use in part.layers:
            report("comparing with k-means", use.stage.number, len(part.layers))
            scores.append(compare_with_kmeans(use.places, use.stage.atoms()))
    except ImportError as error:
        left_out["clusters"] = str(error)
        return []
    return scores


def _probes(part: Survey | None, report: Report, left_out: dict[str, str]) -> list[Probe]:
    if part is None:
        return []
    try:
        return probe_layers(part, lambda done: report("probing layers", done, len(part.layers) + 1))
    except (ImportError, ValueError) as error:
        left_out["separation"] = str(error)
        return []


def _layer_numbers(health: LayerHealth) -> dict[str, Any]:
    stage = health.stage
    return {
        "layer": stage.number,
        "kind": "sparse" if stage.is_sparse else "conv",
        "width": stage.width,
        "stride": stage.window.stride,
        "receptive_field": stage.field.size,
        "lam1": health.lam1,
        "condition": health.condition,
        "active": health.active,
        "dead": health.dead,
        "duplicates": health.duplicates,
        "concerns": [concern.finding for concern in health.concerns()],
    }


def _finite(value: Any) -> Any:
    """The same with None for numbers that are not finite, for which JSON has no word."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _image_numbers(found: WithImages) -> dict[str, Any]:
    return {
        "n_images": len(found.answers.images),
        "n_surveyed": len(found.survey.images),
        "test_error": found.answers.error,
        "confusion": found.answers.confusion().tolist(),
        "rebuilt": [
            {"layer": part.stage.number}
            | {name: float(getattr(part, name).mean()) for name in ("error", "likeness", "active")}
            for part in found.rebuilt
        ],
        "clusters": [None if scores is None else vars(scores) for scores in found.clusters],
        "twin_clusters": [None if scores is None else vars(scores) for scores in found.twin_clusters],
        "probes": [vars(part) for part in found.probes],
        "twin_probes": [vars(part) for part in found.twin_probes],
    }
