"""How linearly separable the classes are, layer by layer: a linear classifier on the averaged codes of each."""

import math
from dataclasses import dataclass

from torch import Tensor

from torchscn.inspect.clusters import scikit_learn
from torchscn.inspect.surveys import Progress, Survey

__all__ = ["Probe", "probe", "probe_layers"]

N_FOLDS = 2


@dataclass(frozen=True)
class Probe:
    """The error of a linear classifier on images that it was not fitted to."""

    error: float  # percent
    standard_error: float  # from the number of images alone


def probe_layers(survey: Survey, progress: Progress | None = None) -> list[Probe]:
    """A probe on the image itself (the mean of every channel), then one on the averaged codes of every layer."""
    pixels = survey.images.images.double().mean((2, 3))
    probes: list[Probe] = []
    for features in (pixels, *(use.pooled for use in survey.layers)):
        probes.append(probe(features, survey.images.labels))
        if progress is not None:
            progress(len(probes))
    return probes


def probe(features: Tensor, labels: Tensor) -> Probe:
    """The error of multinomial logistic regression, fitted to one half of the images and tested on the other, and back.

    Args:
        features: ``(images, features)``; each is scaled to zero mean and unit spread.
        labels: the class of every image.

    Raises:
        ValueError: a class has fewer than two images.
    """
    counts = labels.bincount()
    if int((counts > 0).sum()) < 2 or int(counts[counts > 0].min()) < N_FOLDS:
        raise ValueError("a probe needs at least two classes, and two images of each.")
    # Spread once for all: the scale of a feature needs no labels.
    rows = features.double()
    rows = (rows - rows.mean(0)) / rows.std(0).clamp(min=1e-12)
    with scikit_learn() as sklearn:
        classifier = sklearn.linear_model.LogisticRegression(max_iter=300)
        folds = sklearn.model_selection.StratifiedKFold(N_FOLDS, shuffle=True, random_state=0)
        answers = sklearn.model_selection.cross_val_predict(classifier, rows.numpy(), labels.numpy(), cv=folds)
    wrong = float((answers != labels.numpy()).mean())
    return Probe(100 * wrong, 100 * math.sqrt(wrong * (1 - wrong) / len(labels)))
