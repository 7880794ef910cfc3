"""Fifty FISTA steps with autograd through all of them: a gradient that needs the memory of every step."""

from torchscn.layers import SparseCoding2d

__all__ = ["fifty_steps"]


def fifty_steps(layer: SparseCoding2d) -> SparseCoding2d:
    """The layer with fifty recorded FISTA steps instead of a solve."""
    layer.solver, layer.grad, layer.tol, layer.max_iter = "fista", "unrolled", 0.0, 50
    return layer
