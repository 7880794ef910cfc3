"""Evaluation of a network that runs each sparse coding layer and the batch norm after it in one pass."""

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn

from torchscn.layers import SparseCoding2d
from torchscn.tensors import is_transformed

__all__ = ["can_fuse", "run_fused", "scale_and_offset"]


def can_fuse(x: Tensor, *containers: nn.Module) -> bool:
    """Whether :func:`run_fused` has the same effect as calling the modules one by one, apart from speed.

    Args:
        x: input of the network.
        containers: the network and the modules around its layers, which a fused run does not call.
    """
    if containers[0].training or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if is_transformed() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    watched = torch.nn.modules.module._has_any_global_hook() or not _unwatched(*containers[1:])
    return type(x) in (Tensor, nn.Parameter) and x.device.type in ("cpu", "cuda") and not watched


def run_fused(modules: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Call the modules one after the other, a batch norm together with the sparse coding layer before it."""
    following: list[nn.Module | None] = [*modules[1:], None]
    done: nn.Module | None = None
    for module, after in zip(modules, following, strict=True):
        if module is done:
            continue
        if type(module) is SparseCoding2d and _is_constant(after, module) and _unwatched(module, after):
            x, done = module.infer(x, *scale_and_offset(after)), after
        else:
            x = module(x)
    return x


def _is_constant(module: nn.Module | None, layer: SparseCoding2d) -> TypeGuard[nn.BatchNorm2d]:
    """Whether this is a batch norm that scales and shifts by fixed values, in the precision of the layer."""
    return (
        isinstance(module, nn.BatchNorm2d)
        and (type(module) is nn.BatchNorm2d or getattr(module, "evaluates_as_batch_norm", False))
        and not module.training
        and module.running_mean is not None
        and module.running_mean.dtype == layer.dictionary.dtype
    )


def _unwatched(*modules: nn.Module) -> bool:
    """Whether no hooks are attached to these modules."""
    return not any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def scale_and_offset(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """The scale and offset that a batch norm applies in evaluation mode."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt()
    if norm.affine:
        scale = scale * norm.weight
        return scale, norm.bias - norm.running_mean * scale
    return scale, -norm.running_mean * scale
