"""Exact steps on the support of every signal, in plain torch; ``cpu/face.h`` has the same in C++ and says why."""

import math

import torch
from torch import Tensor

from torchscn.constraints import OnSupport
from torchscn.problem import Problem

__all__ = ["exact_step"]

_CHUNK_VALUES = 2**20  # of the batched systems in memory at once; small enough for the cache
_PARTS = (1.0, 0.5, 0.25)  # of a step that are tried where codes would become negative


def exact_step(problem: Problem, codes: Tensor) -> Tensor:
    """Codes moved towards the optimum over their supports, as far as that lowers the objective."""
    free = problem.constraint.movable(codes) > 0 if isinstance(problem.constraint, OnSupport) else codes > 0
    free = free & problem.has_energy()
    residual = -problem.gradient(codes)
    sizes, order = free.sum(-1).sort(descending=True)
    moved, begin, widths = torch.empty_like(codes), 0, sizes.tolist()
    while begin < len(order):
        width = widths[begin]
        rows = order[begin : begin + max(1, _CHUNK_VALUES // max(1, width**2))]
        system = _System(problem, codes[rows], residual[rows], free[rows], width)
        moved[rows] = system.codes_after(clip=not isinstance(problem.constraint, OnSupport))
        begin += len(rows)
    # Where atoms depend on each other, rounding can lead a step astray.
    worse = _objective(problem, moved) > _objective(problem, codes)
    return torch.where(worse[:, None], codes, moved)


def _objective(problem: Problem, codes: Tensor) -> Tensor:
    return (codes * (problem.gradient(codes) - problem.linear())).sum(-1) / 2


class _System:
    """``G_SS step_S = residual_S`` of every signal, with the atoms of its support S in front."""

    def __init__(self, problem: Problem, codes: Tensor, residual: Tensor, free: Tensor, width: int):
        gram = problem.gram
        # A smaller support is filled up with unknowns that stay zero.
        self.atoms = free.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :width]
        inside = free.gather(-1, self.atoms)
        system = gram[self.atoms[:, :, None], self.atoms[:, None, :]] * (inside[:, :, None] & inside[:, None, :])
        level = torch.finfo(gram.dtype).eps * (4 + math.sqrt(len(gram)))
        ridge = torch.where(inside, level * gram.diagonal()[self.atoms], 1.0)
        self.factor = torch.linalg.cholesky_ex(system + torch.diag_embed(ridge))[0]
        self.all_codes = codes
        self.codes = codes.gather(-1, self.atoms) * inside
        self.residual = residual.gather(-1, self.atoms) * inside
        self.step = torch.cholesky_solve(self.residual[..., None], self.factor).squeeze(-1)

    def codes_after(self, clip: bool) -> Tensor:
        """The codes after the step; with ``clip``, none is below zero."""
        moved = self._clipped() if clip else self.codes + self.step
        # Where the factorisation broke down, the codes stay.
        usable = torch.isfinite(moved).all(-1, keepdim=True)
        return torch.where(usable, self.all_codes.scatter(-1, self.atoms, moved), self.all_codes)

    def _clipped(self) -> Tensor:
        """All of the step where no code becomes negative, else the part of it that lowers the objective most."""
        negative = self.codes + self.step < 0
        first = torch.where(negative, -self.codes / self.step, 1.0)
        to_zero = first.amin(-1, keepdim=True) if first.shape[-1] else first.new_ones(len(first), 1)
        # Up to where the first code reaches zero the objective falls in any case.
        best = torch.where(negative & (first <= to_zero), 0.0, self.codes + to_zero * self.step).clamp(min=0)
        lowest = (to_zero.square() / 2 - to_zero) * (self.residual * self.step).sum(-1, keepdim=True)
        for part in _PARTS:
            moved = (self.codes + part * self.step).clamp(min=0)
            change = self._objective_change(moved - self.codes)
            better = (change < lowest) & (to_zero < part)
            best, lowest = torch.where(better, moved, best), torch.where(better, change, lowest)
        return best

    def _objective_change(self, move: Tensor) -> Tensor:
        along = (self.factor.mT @ move[..., None]).squeeze(-1)
        change: Tensor = along.square().sum(-1, keepdim=True) / 2 - (self.residual * move).sum(-1, keepdim=True)
        return change
