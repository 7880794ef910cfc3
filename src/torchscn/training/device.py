"""What training does on a GPU and not on the CPU: layout, copies in the background, half precision."""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from torchscn.training.config import ConfigError, TrainConfig

__all__ = ["autocast", "batch_options", "check_device", "place_model", "to_device"]


def check_device(config: TrainConfig, device: torch.device) -> None:
    """Check that the device can do what the settings ask for."""
    if config.amp and device.type != "cuda":
        raise ConfigError(
            f"amp=true needs a CUDA device, but the run is on {device.type}, where bfloat16 is slow and on some "
            "machines ends the process. Use amp=false, or a machine with a GPU."
        )


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


def autocast(device: torch.device, amp: bool) -> contextlib.AbstractContextManager[Any]:
    """The context for forward pass and loss: bfloat16 products with ``amp``, otherwise nothing."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if amp else contextlib.nullcontext()
