"""The problems a kernel is checked on: every size, constraint and special case it has code for."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchscn.bench.gpu.kernel import kernel_in_force
from torchscn.constraints import Bounds, Constraint, NonNegative, OnSupport
from torchscn.options import Options
from torchscn.problem import Affine, Problem, gram_matrix
from torchscn.solvers import SOLVERS

__all__ = ["CONSTRAINTS_TO_CHECK", "TWISTS", "CheckProblem", "convert", "exact_codes"]

CONSTRAINTS_TO_CHECK = ("non_negative", "signed", "bounds", "on_support")
_ATOMS_PER_FEATURE = 1 / 3  # keeps the condition of the Gram matrix near 15, so that float32 shows every promise
_ENOUGH_FOR_BAD_SIGNALS = 8
_DISTINCT = 1_009  # signals; more are repetitions, for solving them exactly takes long; prime, to be in all places


@dataclass(frozen=True)
class CheckProblem:
    """A batch of problems, the same at every call.

    Args:
        n_atoms: atoms.
        n_signals: signals; where there are enough, one has a NaN, one is infinite, and one is zero.
        constraint: one of :data:`CONSTRAINTS_TO_CHECK`; ``on_support`` is the linear system of a gradient.
        twist: one of :data:`TWISTS`, or empty.
    """

    n_atoms: int
    n_signals: int
    constraint: str = "non_negative"
    twist: str = ""

    def make(self) -> Problem:
        """The problems in float32 on the CPU."""
        distinct = self.make_distinct()
        if self.n_signals == len(distinct.rhs):
            return distinct
        places = self.places()
        return distinct.take(places, None if distinct.init is None else distinct.init[places])

    def places(self) -> Tensor:
        """For every signal, which of the distinct ones it is."""
        return torch.arange(self.n_signals) % _DISTINCT

    def make_distinct(self) -> Problem:
        """The problems without repetitions."""
        random = torch.Generator().manual_seed(0)
        n_features = math.ceil(self.n_atoms / (2.0 if self.twist == "many atoms" else _ATOMS_PER_FEATURE))
        x = torch.randn(min(self.n_signals, _DISTINCT), n_features, generator=random)
        dictionary = torch.randn(self.n_atoms, n_features, generator=random) / n_features**0.5
        if self.twist == "zero atom":
            dictionary[self.n_atoms // 2] = 0
        if self.twist == "uneven atoms":
            dictionary *= torch.logspace(-1, 1, self.n_atoms, 2.0)[:, None]
        gram = gram_matrix(dictionary, 0.1 if self.twist == "many atoms" else 0.0)
        rhs = x @ dictionary.mT
        problem = Problem(rhs, gram, constraint=_CONSTRAINTS[self.constraint](rhs, random))
        twist = TWISTS[self.twist]
        return _with_bad_signals(problem if twist is None else twist(problem, random))


def _non_negative(rhs: Tensor, random: torch.Generator) -> Constraint:
    return NonNegative()


def _signed(rhs: Tensor, random: torch.Generator) -> Constraint:
    return Bounds(threshold=0.2).fit(rhs, rhs)


def _bounds(rhs: Tensor, random: torch.Generator) -> Constraint:
    """Atoms take turns: free below, free above, and between two numbers; some with a penalty."""
    turn = torch.arange(rhs.shape[1])
    lower = torch.where(turn % 3 == 0, -math.inf, -0.3 * torch.rand(rhs.shape[1], generator=random))
    upper = torch.where(turn % 3 == 1, math.inf, 0.3 * torch.rand(rhs.shape[1], generator=random))
    return Bounds(lower, upper, 0.1 * (turn % 2)).fit(rhs, rhs)


def _on_support(rhs: Tensor, random: torch.Generator) -> Constraint:
    return OnSupport((torch.rand(rhs.shape, generator=random) > 0.5).to(rhs.dtype))


_CONSTRAINTS: dict[str, Callable[[Tensor, torch.Generator], Constraint]] = {
    "non_negative": _non_negative,
    "signed": _signed,
    "bounds": _bounds,
    "on_support": _on_support,
}


def _shifted(problem: Problem, random: torch.Generator) -> Problem:
    return replace(problem, shift=torch.rand(problem.rhs.shape[1], generator=random))


def _warm_start(problem: Problem, random: torch.Generator) -> Problem:
    """Started anywhere, also from codes that are not allowed or not finite."""
    init = torch.randn(problem.rhs.shape, generator=random)
    init[0, 0] = math.nan
    return replace(problem, init=init)


def _affine(problem: Problem, random: torch.Generator) -> Problem:
    n_atoms = problem.rhs.shape[1]
    return replace(problem, affine=Affine(torch.full((n_atoms,), 2.0), torch.randn(n_atoms, generator=random)))


def _dim_and_bright(problem: Problem, random: torch.Generator) -> Problem:
    brightness = torch.exp2(torch.randint(-10, 11, (len(problem.rhs), 1), generator=random).float())
    return replace(problem, rhs=problem.rhs * brightness)


def _own_bounds(problem: Problem, random: torch.Generator) -> Problem:
    """Other bounds for every signal, whatever the constraint was."""
    upper = torch.rand(problem.rhs.shape, generator=random)
    return replace(problem, constraint=Bounds(-0.1, upper, 0.1).fit(problem.rhs, problem.gram))


TWISTS: dict[str, Callable[[Problem, torch.Generator], Problem] | None] = {
    "": None,
    "shift": _shifted,
    "warm start": _warm_start,
    "affine": _affine,
    "dim and bright signals": _dim_and_bright,
    "own bounds": _own_bounds,
    "zero atom": None,
    "uneven atoms": None,
    "many atoms": None,
}
"""What can be special about a problem; None where the dictionary is."""


def _with_bad_signals(problem: Problem) -> Problem:
    rhs = problem.rhs
    if len(rhs) >= _ENOUGH_FOR_BAD_SIGNALS:
        rhs[len(rhs) // 3, -1] = math.nan
        rhs[len(rhs) // 2, 0] = math.inf
        rhs[-1] = 0
    return problem


def convert(problem: Problem, device: torch.device | str, dtype: torch.dtype) -> Problem:
    """The problem on another device, in another precision."""

    def move(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device, dtype, copy=True)

    constraint = type(problem.constraint)(*map(move, problem.constraint.tensors()))
    return replace(
        problem,
        rhs=move(problem.rhs),
        gram=move(problem.gram),
        shift=None if problem.shift is None else move(problem.shift),
        init=None if problem.init is None else move(problem.init),
        constraint=constraint,
        affine=None if problem.affine is None else Affine(*map(move, problem.affine)),
    )


@functools.lru_cache(maxsize=1)
def exact_codes(problem: CheckProblem) -> Tensor:
    """The codes in float64, from the exact solver on the CPU; kept, as the next check is often about the same."""
    in_double = replace(convert(problem.make_distinct(), "cpu", torch.float64), init=None)
    with kernel_in_force("auto"):
        result = SOLVERS["active_set"](in_double, Options(solver="active_set"))
    assert bool((result.converged == in_double.is_finite()).all()), f"no reference for {problem}"
    return result.codes[problem.places()]
