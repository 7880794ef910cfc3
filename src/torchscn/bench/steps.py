"""What is timed of a network: a step of training, and one of inference."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

__all__ = ["inference_step", "training_step"]


def training_step(
    model: nn.Module, x: Tensor, labels: Tensor, autocast: torch.dtype | None = None
) -> Callable[[], None]:
    """A function that takes one step of gradient descent on the batch.

    Args:
        model: the network.
        x: images.
        labels: their classes.
        autocast: type in which the forward pass is computed where torch thinks it safe; None: that of the images.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def run() -> None:
        model.train()
        optimizer.zero_grad()
        with _autocast(x, autocast):
            loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()

    return run


def inference_step(
    model: nn.Module, x: Tensor, labels: Tensor, autocast: torch.dtype | None = None
) -> Callable[[], None]:
    """A function that scores the batch; arguments as for :func:`training_step`."""

    def run() -> None:
        model.eval()
        with torch.inference_mode(), _autocast(x, autocast):
            model(x)

    return run


def _autocast(x: Tensor, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if dtype is None else torch.autocast(x.device.type, dtype)
