"""How weights are moved: by gradient descent with momentum; dictionaries also by momentum made orthogonal (Muon)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchscn.layers import CodingLayer
from torchscn.training.config import TrainConfig

__all__ = ["Muon", "make_optimizer", "orthogonalize", "set_rates"]

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that pulls singular values towards 1
_STEPS = 5


def make_optimizer(model: nn.Module, config: TrainConfig) -> Optimizer:
    """The optimizer that the settings describe; every group knows the peak of its rate."""
    kind: Callable[..., Optimizer] = Muon if config.optimizer == "muon" else torch.optim.SGD
    optimizer = kind(
        _groups(model, config),
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
    )
    for group in optimizer.param_groups:
        group["peak"] = group["lr"]
    return optimizer


def _groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """The parameters, those apart that are moved in another way: dictionaries by Muon, lam1 without weight decay."""
    penalties = {id(module.lam1) for module in model.modules() if isinstance(module, CodingLayer)}
    others, undecayed, matrices = [], [], []
    for parameter in model.parameters():
        if config.optimizer == "muon" and parameter.dim() > 2:
            matrices.append(parameter)
        elif id(parameter) in penalties and not config.decay_lam1:
            undecayed.append(parameter)
        else:
            others.append(parameter)
    by_muon: dict[str, Any] = {"orthogonal": True, "lr": config.muon_lr, "momentum": config.muon_momentum}
    groups: list[dict[str, Any]] = [
        {"params": others},
        {"params": undecayed, "weight_decay": 0.0},
        {"params": matrices, **by_muon},
    ]
    return [group for group in groups if group["params"]]


def set_rates(optimizer: Optimizer, share: float) -> None:
    """Set the rate of every group to this share of its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share


class Muon(Optimizer):
    """Gradient descent with momentum; in groups with ``orthogonal=True`` the momentum is made orthogonal first.

    A dictionary then moves equally far in all directions that the gradient knows, however small. Its norm is kept at
    the root of the number of atoms, so that the rate is the relative length of a step, and weight decay has no part in
    it.

    Args:
        params: parameters or groups; those of an orthogonal group need at least two dimensions, the first for atoms.
        lr: rate.
        momentum: share of the last step in the next.
        nesterov: look ahead along the momentum.
        weight_decay: of groups that are not orthogonal.

    References:
        K. Jordan, Muon: an optimizer for hidden layers in neural networks (2024).
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.01,
        momentum: float = 0.95,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        orthogonal: bool = False,
    ):
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "orthogonal": orthogonal,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        return loss

    def _move(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        gradient = parameter.grad
        if group["weight_decay"] and not group["orthogonal"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        buffer.mul_(group["momentum"]).add_(gradient)
        direction = gradient.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
        if group["orthogonal"]:
            parameter.mul_(len(parameter) ** 0.5 / parameter.norm().clamp(min=1e-12))
            direction = orthogonalize(direction.flatten(1)).view_as(parameter)
        parameter.add_(direction, alpha=-group["lr"])


def orthogonalize(matrix: Tensor) -> Tensor:
    """The matrix with all its singular values near 1 (about 0.7 to 1.2), by Newton-Schulz steps.

    Example:
        >>> values = torch.linalg.svdvals(orthogonalize(torch.diag(torch.tensor([5.0, 1.0, 0.2]))))
        >>> bool(((values > 0.6) & (values < 1.3)).all())
        True
    """
    a, b, c = _COEFFICIENTS
    x: Tensor = matrix / matrix.norm().clamp(min=1e-12)
    turned = x.shape[0] > x.shape[1]
    x = x.mT if turned else x
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if turned else x
