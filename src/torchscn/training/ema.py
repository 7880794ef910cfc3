"""Weights averaged over the steps of a run."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["AveragedWeights"]


class AveragedWeights:
    """An exponential moving average of a model's state, batch norm statistics included."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def update(self, model: nn.Module, step: int) -> None:
        """Move towards the model's state; faster early on, so that the start is forgotten."""
        decay = min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, value in model.state_dict().items():
                if value.is_floating_point():
                    self.weights[name].lerp_(value, 1 - decay)
                else:
                    self.weights[name].copy_(value)

    def restore(self, weights: dict[str, Tensor]) -> None:
        for name, value in weights.items():
            self.weights[name].copy_(value)

    def copy_to(self, model: nn.Module) -> None:
        model.load_state_dict(self.weights)

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Put the averaged weights into the model temporarily, then restore its own."""
        own = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.copy_to(model)
        try:
            yield
        finally:
            model.load_state_dict(own)
