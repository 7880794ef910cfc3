"""The l1 penalty of a layer as one number to turn: from 0 to the value at which all codes vanish."""

import torch
from torch import Tensor

from torchscn.constraints import NonNegative
from torchscn.patches import PatchModel

__all__ = ["changed_lam1", "vanishing_lam1"]

MARGIN = 1e-5  # rounding of the correlations


def changed_lam1(trained: Tensor, value: float) -> Tensor:
    """The penalty with another mean: one for all atoms or, where each has its own, these scaled down or all raised.

    Args:
        trained: the penalty, a scalar or one value per atom, at least 0.
        value: the mean that it is to have. Penalties per atom reach 0 together, and all codes vanish at the latest
            when each is raised by the largest correlation.

    Example:
        >>> changed_lam1(torch.tensor([0.0, 0.5]), 0.125)
        tensor([0.0000, 0.2500])
        >>> changed_lam1(torch.tensor([0.0, 0.5]), 1.0)
        tensor([0.7500, 1.2500])
    """
    mean = float(trained.mean())
    if trained.dim() == 0 or mean == 0:
        return torch.full_like(trained, value)
    return trained * (value / mean) if value <= mean else trained + (value - mean)


def vanishing_lam1(model: PatchModel, x: Tensor) -> float:
    """The smallest mean penalty, by :func:`changed_lam1`, at which every code of ``x`` is 0; at least the trained one.

    A code is 0 if its penalty is not below the correlation of its atom with the patch, when all the others are 0.
    """
    x, model = model.check(x)
    correlations = model.normal_form(x)[0]
    if not isinstance(model.constraint, NonNegative):
        correlations = correlations.abs()
    above = float((correlations - model.lam1).amax())
    return float(model.lam1.mean()) + (1 + MARGIN) * max(above, 0.0)
