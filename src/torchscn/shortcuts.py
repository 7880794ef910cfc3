"""Shortcuts: what is added to the output of a module of two layers, made of the module's input."""

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

__all__ = ["PooledShortcut", "make_shortcut"]


class PooledShortcut(nn.Module):
    """The input of a module brought to the shape of its output, without weights.

    Squares of ``stride`` x ``stride`` positions are averaged (at the border, those that exist), channels that the input
    lacks are zero, and of an input with more channels than the output only the first ``width`` are kept.

    Args:
        width: channels of the module's output.
        stride: stride of the module.

    Example:
        >>> import torch
        >>> PooledShortcut(5, stride=2)(torch.ones(1, 3, 7, 7)).sum((2, 3))
        tensor([[16., 16., 16.,  0.,  0.]])
    """

    def __init__(self, width: int, stride: int):
        super().__init__()
        self.width, self.stride = width, stride

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, : self.width]
        if self.stride > 1:
            x = F.avg_pool2d(x, self.stride, ceil_mode=True)  # layers, too, have a position for an incomplete square
        missing = self.width - x.shape[1]
        return F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x

    def extra_repr(self) -> str:
        return f"{self.width}, stride={self.stride}"


def make_shortcut(kind: str, in_channels: int, width: int, stride: int) -> nn.Module:
    """The shortcut around a module, without change where its output has the shape of its input.

    Args:
        kind: ``"pooled"`` or ``"projected"``, which matters only where the shapes differ.
        in_channels: channels of the module's input.
        width: channels of its output.
        stride: its stride.
    """
    if in_channels == width and stride == 1:
        return nn.Identity()
    if kind == "pooled":
        return PooledShortcut(width, stride)
    projection = nn.Conv2d(in_channels, width, 1, stride, bias=False)
    nn.init.kaiming_normal_(projection.weight, nonlinearity="relu")
    return projection
