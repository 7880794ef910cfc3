"""Evaluate a classifier on labelled images."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from torchscn.data import Batches
from torchscn.training.device import to_device
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
    *,
    mirror: bool = False,
) -> Evaluation:
    """Run ``model`` in evaluation mode over one pass of ``batches``; with several ranks, each takes its share.

    Args:
        model: maps images to one score per class.
        batches: unshuffled and unaugmented, usually with ``drop_last=False``.
        device: where the model is.
        progress: called after every batch with the number of images done.
        mirror: average the scores of every image with those of its mirror image.
    """
    device = device or torch.device("cpu")
    n_classes, n_done = len(batches.images.classes), 0
    # Sums stay on the device until the end: reading them makes the CPU wait for it.
    confusion = torch.zeros(n_classes**2, dtype=torch.int64, device=device)
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)
    was_training = model.training
    model.eval()
    start = time.perf_counter()
    try:
        with torch.inference_mode():
            for x, labels in batches.epoch(0):
                if not len(labels):
                    continue
                x, labels = to_device(x, device), to_device(labels, device)
                scores = (model(x) + model(x.flip(-1))) / 2 if mirror else model(x)
                if scores.shape[1] != n_classes:
                    raise ValueError(
                        f"the model gives {scores.shape[1]} scores, but the images have {n_classes} classes."
                    )
                loss_sum += F.cross_entropy(scores, labels, reduction="sum")
                # Not bincount, which reads the largest entry to choose the length of its result.
                confusion.scatter_add_(0, labels * n_classes + scores.argmax(1), torch.ones_like(labels))
                n_done += len(labels)
                if progress is not None:
                    progress(n_done)
        loss_sum.item()  # the work is not done before the device has finished it
    finally:
        model.train(was_training)
    seconds = time.perf_counter() - start
    confusion = sum_over_ranks(confusion).view(n_classes, n_classes).cpu()
    loss = float(sum_over_ranks(loss_sum))
    n_images = int(confusion.sum())
    return Evaluation(confusion, loss / max(1, n_images), n_images / seconds)
