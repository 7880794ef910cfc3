"""Evaluate a classifier on labelled images."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from torchscn.data import Batches
from torchscn.training.distributed import sum_over_ranks

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """How well a classifier did."""

    confusion: Tensor  # (n_classes, n_classes): how often class row was taken for class column
    loss: float  # mean cross-entropy
    images_per_second: float

    @property
    def error(self) -> float:
        """Share of wrong answers, in percent."""
        return 100 * (1 - float(self.confusion.diagonal().sum()) / max(1, int(self.confusion.sum())))

    def class_errors(self) -> list[float]:
        """Share of wrong answers for each class, in percent."""
        right = self.confusion.diagonal().double() / self.confusion.sum(1).clamp(min=1)
        return (100 * (1 - right)).tolist()


def evaluate(
    model: nn.Module,
    batches: Batches,
    device: torch.device | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Run ``model`` in evaluation mode over one pass of ``batches``; with several ranks, each takes its share.

    Args:
        model: maps images to one score per class.
        batches: unshuffled and unaugmented, usually with ``drop_last=False``.
        device: where the model is.
        progress: called after every batch with the number of images done.
    """
    n_classes = len(batches.images.classes)
    confusion = torch.zeros(n_classes, n_classes, dtype=torch.int64)
    total_loss = 0.0
    was_training = model.training
    model.eval()
    start = time.perf_counter()
    try:
        with torch.inference_mode():
            for x, labels in batches.epoch(0):
                if not len(labels):
                    continue
                scores = model(x.to(device)).cpu()
                if scores.shape[1] != n_classes:
                    raise ValueError(
                        f"the model gives {scores.shape[1]} scores, but the images have {n_classes} classes."
                    )
                total_loss += float(F.cross_entropy(scores, labels, reduction="sum"))
                confusion += torch.bincount(labels * n_classes + scores.argmax(1), minlength=n_classes**2).view(
                    n_classes, n_classes
                )
                if progress is not None:
                    progress(int(confusion.sum()))
    finally:
        model.train(was_training)
    seconds = time.perf_counter() - start
    device = device or torch.device("cpu")
    confusion = sum_over_ranks(confusion.to(device)).cpu()
    loss = float(sum_over_ranks(torch.tensor(total_loss, dtype=torch.float64, device=device)))
    n_images = int(confusion.sum())
    return Evaluation(confusion, loss / max(1, n_images), n_images / seconds)
