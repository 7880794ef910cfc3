"""What solvers share: the loop with its stopping rule, and the handling of signals that are not finite."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchscn.options import Options
from torchscn.problem import Problem

__all__ = ["iterate", "mark_bad_signals", "reachable_tol"]


def reachable_tol(options: Options, gram: Tensor) -> float:
    """The tolerance, raised to what the dtype can resolve; exactly 0 means a fixed number of steps."""
    if options.has_fixed_steps:
        return 0.0
    return max(options.tol, torch.finfo(gram.dtype).eps * max(4.0, math.sqrt(gram.shape[-1]) / 2))


def iterate(
    step: Callable[[Tensor], tuple[Tensor, Tensor]], codes: Tensor, tol: float, max_iter: int
) -> tuple[Tensor, Tensor, int]:
    """Apply ``step`` until no code of any signal changes by more than ``tol`` times its largest code.

    Args:
        step: maps codes to the next codes and the largest change of every signal.
        codes: ``(n_signals, n_atoms)`` to start from.
        tol: relative accuracy; 0 runs ``max_iter`` steps.
        max_iter: cap on the steps.

    Returns:
        codes, converged ``(n_signals,)``, steps taken.
    """
    # On other devices, reading the stopping test waits for the device, so it is read rarely.
    check_every = 1 if codes.device.type == "cpu" else 10
    done = torch.zeros(codes.shape[:-1], dtype=torch.bool, device=codes.device)
    n_iter = 0
    while n_iter < max_iter:
        codes, change = step(codes)
        n_iter += 1
        if tol > 0 and (n_iter % check_every == 0 or n_iter == max_iter):
            # Written so that NaN counts as done: a bad row never holds the others up.
            done = ~(change > tol * codes.detach().abs().amax(-1))
            if done.all():
                break
    return codes, done, n_iter


def mark_bad_signals(problem: Problem, codes: Tensor, converged: Tensor) -> tuple[Tensor, Tensor]:
    """NaN codes and ``converged=False`` for every signal whose problem or code is not finite."""
    finite = problem.is_finite() & torch.isfinite(codes).all(-1)
    return torch.where(finite[..., None], codes, torch.nan), converged & finite
