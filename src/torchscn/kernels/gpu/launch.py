"""Problems handed to the Triton kernels; nothing is read back from the device."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, overload

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from torchscn.constraints import Bounds, OnSupport
from torchscn.kernels.gpu.blocks import sweep_blocks
from torchscn.kernels.gpu.finish import finish_rows
from torchscn.kernels.gpu.prepare import PreparedGram, power_of_two_at_least
from torchscn.kernels.gpu.rows import BOUNDS, DONE, NON_NEGATIVE, ON_SUPPORT
from torchscn.kernels.gpu.small import sweep_small
from torchscn.kernels.rule import SweepRule
from torchscn.problem import Problem, Result

__all__ = ["BLOCK_OPTIONS", "FINISH_OPTIONS", "SMALL", "SMALL_OPTIONS", "TILES", "triton_sweeps"]

SMALL = 16  # atoms up to which everything stays in registers
TILES = {"many": {"ROWS": 64, "num_warps": 2}, "few": {"ROWS": 32, "num_warps": 1}}
"""Signals and warps of a tile; found by compiling, so that no registers are spilled."""
FEW_SIGNALS = 64 * 200  # with fewer, smaller tiles keep more of the device busy

SMALL_OPTIONS = {"num_stages": 2}
BLOCK_OPTIONS = {"CHUNK": 32, "num_stages": 2}
FINISH_OPTIONS = {"CHUNK": 16, "num_warps": 4, "num_stages": 1}
_FINISH_VALUES = 2**24  # of all factors in memory at once
_MOST_PROGRAMS = 2**12
# As in cpu/block.cpp: on a given support one step does it, and what is left then is rounding.
_MOST_ROUNDS = 200
_MOST_ROUNDS_ON_SUPPORT = 3


@torch.no_grad()
def triton_sweeps(problem: Problem, rule: SweepRule) -> Result:
    """Sweep over the atoms until every tile of signals keeps the promise of the rule, in float32.

    ``by_block`` judges a tile as a whole, as the compiled kernel does its blocks.
    """
    if problem.rhs.numel() == 0:
        converged = torch.ones(len(problem.rhs), dtype=torch.bool, device=problem.rhs.device)
        return Result(torch.empty_like(problem.rhs), converged, 0, 0.0)
    with _device_of(problem.rhs):
        call = _Call(problem, rule)
        sweeps = call.sweep()
        rounds = call.finish() if rule.finishes and rule.tol > 0 else None
    codes = call.codes[:, : problem.rhs.shape[1]]
    counts = _Counts(sweeps, rounds, len(codes))
    return Result(codes.contiguous(), call.status == DONE.value, counts, counts)


def _device_of(rhs: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the one the tensors are on."""
    return torch.cuda.device(rhs.device) if rhs.is_cuda else nullcontext()


class _Counts:
    """Iterations, which stay on the device until somebody reads them: as an int, the most; as a float, the mean."""

    def __init__(self, sweeps: Tensor, rounds: Tensor | None, n_signals: int):
        self.sweeps, self.rounds, self.n_signals = sweeps, rounds, n_signals

    def __int__(self) -> int:
        return int(self.sweeps.amax()) + (0 if self.rounds is None else int(self.rounds[:, 0].amax()))

    def __float__(self) -> float:
        all_rounds = 0.0 if self.rounds is None else float(self.rounds[:, 1].sum())
        return float(self.sweeps.float().mean()) + all_rounds / self.n_signals


class _Call:
    """The tensors of a problem as the kernels want them, and what they write."""

    def __init__(self, problem: Problem, rule: SweepRule):
        self.rule, self.gram = rule, PreparedGram(problem, rule, multiple=BLOCK_OPTIONS["CHUNK"])
        constraint = problem.constraint
        bounds = constraint if isinstance(constraint, Bounds) else None
        start = problem.start()
        # Residuals that are only ever updated keep the rounding errors of a start far off; blocks compute them anew.
        self.is_small = problem.rhs.shape[1] <= SMALL and bounds is None and start is None
        self.extra = self.gram.width - problem.rhs.shape[1]
        self.rhs = self._padded(problem.rhs)
        self.n_signals, self.n_atoms = self.rhs.shape
        self.codes = torch.empty_like(self.rhs)
        self.status = torch.empty(self.n_signals, dtype=torch.int8, device=self.rhs.device)
        self.shift, self.init = self._padded(problem.shift), self._padded(start)
        self.mask = self._padded(constraint.mask) if isinstance(constraint, OnSupport) else None
        self.scale, self.offset = (self._padded(part) for part in problem.affine or (None, None))
        self.bounds, self.bound_stride = self._laid_out(bounds)
        self.kind = (ON_SUPPORT if self.mask is not None else NON_NEGATIVE if bounds is None else BOUNDS).value

    @overload
    def _padded(self, tensor: Tensor) -> Tensor: ...
    @overload
    def _padded(self, tensor: None) -> None: ...
    def _padded(self, tensor: Tensor | None) -> Tensor | None:
        """The tensor with whole blocks of atoms."""
        if tensor is None:
            return None
        return (F.pad(tensor, (0, self.extra)) if self.extra else tensor).contiguous()

    def _laid_out(self, bounds: Bounds | None) -> tuple[list[Tensor | None], int]:
        """Lower and upper bounds and thresholds, and how far apart those of two signals are."""
        if bounds is None:
            return [None] * 3, 0
        own_rows = any(tensor.dim() == 2 for tensor in bounds.tensors())
        shape = (self.n_signals if own_rows else 1, self.n_atoms - self.extra)
        return [self._padded(tensor.expand(shape)) for tensor in bounds.tensors()], self.n_atoms if own_rows else 0

    def _constants(self) -> dict[str, Any]:
        return {
            "CONSTRAINT": self.kind,
            "HAS_SHIFT": self.shift is not None,
            "HAS_AFFINE": self.scale is not None,
        }

    def _pointers(self, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        # Something must stand in for what a problem does not have.
        return tuple(self.rhs if tensor is None else tensor for tensor in tensors)

    def sweep(self) -> Tensor:
        """Sweep over all tiles; returns the sweeps of every tile."""
        rule, gram = self.rule, self.gram
        tile = TILES["many" if self.n_signals >= FEW_SIGNALS else "few"]
        n_tiles = math.ceil(self.n_signals / tile["ROWS"])
        sweeps = torch.empty(n_tiles, dtype=torch.int32, device=self.rhs.device)
        stopping = (min(rule.max_iter, 2**31 - 1), rule.tol, gram.affordable)
        constants = self._constants() | {
            "BY_BLOCK": rule.by_block,
            "STOPS": rule.tol > 0,
            "FINISHES": rule.finishes,
        }
        about = (gram.inverse, gram.own, gram.limits)
        written = (self.codes, self.status, sweeps)
        if self.is_small:
            sweep_small[(n_tiles,)](
                self.rhs,
                gram.scaled,
                *about,
                *self._pointers(self.shift, self.mask, self.scale, self.offset),
                *written,
                *(self.n_signals, *stopping),
                **constants | tile | SMALL_OPTIONS,
            )
        else:
            optional = (self.shift, self.init, self.mask, *self.bounds, gram.norms, self.scale, self.offset)
            sweep_blocks[(n_tiles,)](
                self.rhs,
                gram.scaled,
                *gram.halves,
                *about,
                *self._pointers(*optional),
                *written,
                *(self.n_signals, self.n_atoms, gram.width, self.bound_stride, *stopping),
                HAS_INIT=self.init is not None,
                **constants | tile | BLOCK_OPTIONS,
            )
        return sweeps

    def finish(self) -> Tensor:
        """Take exact steps for the signals that are not done; returns the most and all rounds of every program."""
        gram, size = self.gram, power_of_two_at_least(self.gram.width)
        most_rounds = _MOST_ROUNDS if self.mask is None else _MOST_ROUNDS_ON_SUPPORT
        n_programs = min(self.n_signals, _MOST_PROGRAMS, max(1, _FINISH_VALUES // size**2))
        factors = torch.empty(n_programs, size, size, device=self.rhs.device)
        rounds = torch.empty(n_programs, 2, dtype=torch.int32, device=self.rhs.device)
        finish_rows[(n_programs,)](
            self.rhs,
            *(gram.scaled, *gram.halves, gram.inverse, gram.own, gram.limits),
            *self._pointers(self.shift, self.mask, *self.bounds, gram.norms, self.scale, self.offset),
            *(self.codes, self.status, rounds, factors),
            *(self.n_signals, self.n_atoms, gram.width, self.bound_stride),
            *(min(self.rule.max_iter, most_rounds), gram.face_ridge, gram.least_pivot),
            N=size,
            **self._constants() | FINISH_OPTIONS,
        )
        return rounds
