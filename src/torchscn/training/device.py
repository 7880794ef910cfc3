"""What training does on a GPU and not on the CPU: layout and copies in the background."""

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["batch_options", "place_model", "to_device"]


def place_model(model: nn.Module, device: torch.device) -> nn.Module:
    """The model on the device; on a GPU with filters and dictionaries in the layout of the batches."""
    if device.type == "cuda":
        return model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    return model.to(device)


def batch_options(device: torch.device) -> dict[str, Any]:
    """How :class:`torchscn.data.Batches` should make the batches for a device; their content is always the same.

    Example:
        >>> batch_options(torch.device("cpu"))
        {}
    """
    return {"prefetch": True, "pinned_for": device} if device.type == "cuda" else {}


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; from page-locked memory it is copied while the CPU goes on."""
    return tensor.to(device, non_blocking=True)
