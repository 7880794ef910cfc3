"""What solvers share: the accuracy they promise, the loop, and the handling of signals that are not finite."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchscn.constraints import OnSupport
from torchscn.kernels import Conditioning, StepLimit, SweepRule, VanishingAtomError
from torchscn.options import Options
from torchscn.problem import Problem
from torchscn.tensors import is_readable

__all__ = ["iterate", "mark_bad_signals", "refuse_vanishing_atoms", "rounding_level", "step_limit", "sweep_rule"]

_PROMISE = 10.0  # error of the codes that `converged` stands for, in units of the tolerance
# The linear system of a gradient is solved to five times the tolerance of the codes, but promises as much as they.
_PROMISE_ON_SUPPORT = 2.0
_NOISE = 4.0  # of a step, in units of the rounding level, when most of the right-hand side cancels
_MAX_SWEEPS = 1000  # when max_iter is None


def sweep_rule(problem: Problem, options: Options, finishes: bool = False) -> SweepRule:
    """The options in the terms of a kernel.

    Args:
        problem: what is to be solved.
        options: how.
        finishes: whether exact steps may be taken.
    """
    rounding = rounding_level(problem.gram)
    tol = 0.0 if options.has_fixed_steps else max(options.tol, rounding)
    return SweepRule(
        tol=tol,
        promise=tol * (_PROMISE_ON_SUPPORT if isinstance(problem.constraint, OnSupport) else _PROMISE),
        rounding=_NOISE * rounding,
        max_iter=_most_iterations(problem) if options.max_iter is None else options.max_iter,
        by_block=options.stop == "block",
        finishes=finishes,
    )


def _most_iterations(problem: Problem) -> int:
    # Where every signal has a matrix of its own, an iteration adds an atom to the support or takes one off.
    return _MAX_SWEEPS if problem.gram.dim() == 2 else _MAX_SWEEPS + 20 * problem.gram.shape[-1]


def rounding_level(gram: Tensor) -> float:
    """The shortest step, relative to the codes, that can be told from none for orthogonal atoms."""
    return torch.finfo(gram.dtype).eps * max(4.0, math.sqrt(gram.shape[-1]) / 2)


def refuse_vanishing_atoms(problem: Problem) -> None:
    """Raise VanishingAtomError where codes have no bound, if that can be read right away."""
    if is_readable(problem.gram) and problem.has_vanishing_code():
        raise VanishingAtomError


def step_limit(problem: Problem, options: Options, system: Tensor) -> StepLimit:
    """When a signal is done: the longest step after which its codes are as accurate as ``options.tol`` promises.

    Args:
        problem: what is to be solved.
        options: with a tolerance; without one no step is short enough.
        system: the matrix W for which ``G error = W step`` after a step of the solver, where no code is clipped. For a
            projected gradient step of length t that is ``I / t - G``.
    """
    condition = Conditioning(problem.gram.detach())
    if is_readable(problem.gram):
        condition.check()
    # A gradient step has no noise from atoms updated before it.
    rule = sweep_rule(problem, options)._replace(rounding=rounding_level(problem.gram))
    return condition.limit(rule, system.detach())


def iterate(
    step: Callable[[Tensor], tuple[Tensor, Tensor]], codes: Tensor, limit: StepLimit | None, max_iter: int
) -> tuple[Tensor, Tensor, int]:
    """Apply ``step`` until every signal is done.

    Args:
        step: maps codes to the next codes and to the step that is judged, of the same shape.
        codes: ``(n_signals, n_atoms)`` to start from.
        limit: when a signal is done; None runs ``max_iter`` steps.
        max_iter: cap on the steps.

    Returns:
        codes, converged ``(n_signals,)``, steps taken.
    """
    # On other devices, reading the stopping test waits for the device, so it is read rarely.
    check_every = 1 if codes.device.type == "cpu" else 10
    done = torch.zeros(codes.shape[:-1], dtype=torch.bool, device=codes.device)
    n_iter = 0
    while n_iter < max_iter:
        codes, taken = step(codes)
        n_iter += 1
        if limit is not None and (n_iter % check_every == 0 or n_iter == max_iter):
            done = limit.allows(taken.detach(), codes.detach())
            if done.all():
                break
    return codes, done, n_iter


def mark_bad_signals(problem: Problem, codes: Tensor, converged: Tensor) -> tuple[Tensor, Tensor]:
    """NaN codes and ``converged=False`` for every signal whose problem or code is not finite."""
    finite = problem.is_finite() & torch.isfinite(codes).all(-1)
    return torch.where(finite[..., None], codes, torch.nan), converged & finite
