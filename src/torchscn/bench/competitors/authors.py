"""The authors' algorithm in torch: extracted patches, 50 FISTA steps, a dense solve on the support for the gradient."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from torchscn.bench.competitors.fused_fista import fused_fista
from torchscn.layers import SparseCoding2d
from torchscn.problem import gram_matrix

__all__ = ["AuthorsLayer", "replace_layers"]

_CHUNK_VALUES = 2**25  # of the dense systems in memory at once


class AuthorsLayer(nn.Module):
    """A sparse coding layer computed their way, with the parameters of ours."""

    def __init__(self, layer: SparseCoding2d):
        super().__init__()
        self.dictionary, self.lam1, self.lam2 = layer.dictionary, layer.lam1, layer.lam2
        self.geometry = {"padding": layer.padding, "stride": layer.stride, "dilation": layer.dilation}
        self.kernel_size = layer.kernel_size

    def forward(self, x: Tensor) -> Tensor:
        height, width = (
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, p, s, d in zip(x.shape[2:], self.kernel_size, *self.geometry.values(), strict=True)
        )
        patches = F.unfold(x, self.kernel_size, **self.geometry).transpose(1, 2).flatten(0, 1)
        D = self.dictionary.flatten(1)
        rhs = patches @ D.T - self.lam1
        codes: Tensor = _FistaWithDenseGradient.apply(rhs, gram_matrix(D, self.lam2))  # type: ignore[no-untyped-call]
        return codes.view(len(x), height, width, -1).permute(0, 3, 1, 2)


class _FistaWithDenseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rhs: Tensor, gram: Tensor) -> Tensor:
        codes = fused_fista(rhs, gram)
        ctx.save_for_backward(gram, codes)
        return codes

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gram, codes = ctx.saved_tensors
        size = max(1, _CHUNK_VALUES // len(gram) ** 2)
        parts = [_dense_solve(g, gram, c > 0) for g, c in zip(grad.split(size), codes.split(size), strict=True)]
        gamma = torch.cat(parts)
        return gamma, -(gamma.T @ codes)


def _dense_solve(grad: Tensor, gram: Tensor, support: Tensor) -> Tensor:
    """One dense system per position: the Gram matrix on its support, the identity elsewhere."""
    inside = support.to(gram.dtype)
    systems = gram * inside[:, :, None] * inside[:, None, :] + torch.diag_embed(1 - inside)
    factor, _ = torch.linalg.cholesky_ex(systems)
    return torch.cholesky_solve((grad * inside)[..., None], factor).squeeze(-1)


def replace_layers(model: nn.Module, make: Any = AuthorsLayer) -> nn.Module:
    """Replace every sparse coding layer of ``model`` with ``make(layer)``."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, SparseCoding2d):
                setattr(module, name, make(child))
    return model
