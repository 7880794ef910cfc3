"""The paper's 50 FISTA steps, written for speed: one fused product and in-place arithmetic per step."""

import torch
from torch import Tensor

__all__ = ["fused_fista"]


def fused_fista(rhs: Tensor, gram: Tensor, n_steps: int = 50) -> Tensor:
    """Codes of the normal form after ``n_steps`` steps from zero."""
    step = 1 / torch.linalg.eigvalsh(gram)[-1]
    contraction = torch.eye(len(gram)) - step * gram
    target = rhs * step
    codes, following, ahead = (torch.zeros_like(target) for _ in range(3))
    t = 1.0
    for _ in range(n_steps):
        torch.addmm(target, ahead, contraction, out=following).relu_()
        t_next = (1 + (1 + 4 * t * t) ** 0.5) / 2
        torch.lerp(codes, following, 1 + (t - 1) / t_next, out=ahead)
        codes, following, t = following, codes, t_next
    return codes
