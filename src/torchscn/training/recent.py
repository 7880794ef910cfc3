"""The results of the last steps, left on the device until someone needs them: reading makes the CPU wait for it."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["RecentSteps", "StepResult", "steps_between_reads"]

# How far the CPU may run ahead of a GPU: far enough that neither waits for the other, near enough for a lively display.
STEPS_BETWEEN_READS_ON_CUDA = 20


def steps_between_reads(device: torch.device) -> int:
    """After how many steps the results are read; on the CPU they are there already.

    Example:
        >>> steps_between_reads(torch.device("cpu"))
        1
    """
    return STEPS_BETWEEN_READS_ON_CUDA if device.type == "cuda" else 1


class StepResult(NamedTuple):
    """What one step says about its batch."""

    loss: float  # mean over the batch
    n_wrong: int
    n_images: int


class RecentSteps:
    """Steps whose results were not read yet.

    They are kept one by one and not summed up on the device, so that the sums do not depend on when they are read, and
    the first step with a loss that is not finite can be named.

    Example:
        >>> recent = RecentSteps()
        >>> recent.add(torch.tensor(0.5), torch.tensor(3), 8)
        >>> recent.read()
        [StepResult(loss=0.5, n_wrong=3, n_images=8)]
        >>> recent.read()
        []
    """

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._n_wrong: list[Tensor] = []
        self._n_images: list[int] = []

    def __len__(self) -> int:
        return len(self._n_images)

    def add(self, loss: Tensor, n_wrong: Tensor, n_images: int) -> None:
        """Note a step, without looking at its numbers."""
        self._losses.append(loss)
        self._n_wrong.append(n_wrong)
        self._n_images.append(n_images)

    def read(self) -> list[StepResult]:
        """The steps since the last reading, in their order; waits until the device has finished them."""
        if not len(self):
            return []
        losses, n_wrong = torch.stack(self._losses).tolist(), torch.stack(self._n_wrong).tolist()
        results = [StepResult(*numbers) for numbers in zip(losses, n_wrong, self._n_images, strict=True)]
        for kept in (self._losses, self._n_wrong, self._n_images):
            kept.clear()
        return results
