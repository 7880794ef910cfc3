"""Where a network is wrong: which classes it confuses, and its most confident errors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchscn.certificates import evaluating
from torchscn.data import ImageSet
from torchscn.inspect.surveys import Progress, check_images
from torchscn.network import Network

__all__ = ["Answers", "Mistake", "answer"]

BATCH = 256


@dataclass(frozen=True)
class Mistake:
    """An image that the network took for something else."""

    image: int
    truth: int
    answer: int
    share: float  # how sure the network was of its answer, from 0 to 1


@dataclass(frozen=True)
class Answers:
    """The answers of a network to labelled images."""

    images: ImageSet
    scores: Tensor  # (images, classes)

    @property
    def error(self) -> float:
        """Share of wrong answers, in percent."""
        return 100 * float((self.scores.argmax(1) != self.images.labels).double().mean())

    def confusion(self) -> Tensor:
        """How often class row was taken for class column, ``(classes, classes)``."""
        n_classes = len(self.images.classes)
        pairs = self.images.labels * n_classes + self.scores.argmax(1)
        return pairs.bincount(minlength=n_classes**2).view(n_classes, n_classes)

    def mistakes(self, n_mistakes: int) -> list[Mistake]:
        """The most confident errors, the worst first."""
        shares, answers = self.scores.double().softmax(1).max(1)
        wrong = (answers != self.images.labels).nonzero().flatten()
        worst = wrong[shares[wrong].argsort(descending=True)][:n_mistakes].tolist()
        labels = self.images.labels
        return [Mistake(i, int(labels[i]), int(answers[i]), float(shares[i])) for i in worst]


def answer(network: Network, images: ImageSet, progress: Progress | None = None) -> Answers:
    """The scores of a network for labelled images."""
    check_images(network, images)
    scores = []
    with torch.inference_mode(), evaluating(network):
        for start in range(0, len(images), BATCH):
            x = network.preprocess(images.images[start : start + BATCH])
            scores.append(network(x).cpu())
            if progress is not None:
                progress(start + len(x))
    return Answers(images, torch.cat(scores).clone())
