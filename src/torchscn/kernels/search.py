"""The active-set method on many problems at once, in plain torch; ``cpu/active_set.h`` has it in C++, one by one."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchscn.constraints import Bounds, OnSupport, SumTo
from torchscn.kernels.rule import NOT_CONVEX, SweepRule, VanishingAtomError
from torchscn.problem import Problem, Result, power_of_two

__all__ = ["torch_active_set"]

_CHUNK_VALUES = 2**22  # of the systems in memory at once, where signals share a Gram matrix


@torch.no_grad()
def torch_active_set(problem: Problem, rule: SweepRule) -> Result:
    """The active-set method of Lawson and Hanson on all problems at once: exact, whatever the tolerance of the rule."""
    if problem.rhs.numel() == 0:
        return Result(torch.empty_like(problem.rhs), problem.is_finite(), 0, 0.0)
    _check(problem)
    n_rows = max(1, _CHUNK_VALUES // problem.gram.shape[-1] ** 2)
    init = problem.init if problem.gram.dim() == 2 else None
    parts = [
        _solve(problem.take(rows, None if init is None else init[rows]), rule)
        for rows in torch.arange(len(problem.rhs), device=problem.rhs.device).split(n_rows)
    ]
    codes, done = torch.cat([part.codes for part in parts]), torch.cat([part.converged for part in parts])
    n_iter = max(int(part.n_iter) for part in parts)
    return Result(problem.finish(codes), done, n_iter, float(n_iter))


def _check(problem: Problem) -> None:
    """Raise an error where there may be no optimum."""
    energy, limits = problem.energy(), torch.finfo(problem.gram.dtype)
    norms = torch.where(energy > 0, energy.sqrt(), 1.0)
    gram = (problem.gram / norms[..., :, None] / norms[..., None, :]).nan_to_num(0, 0, 0)
    if bool((energy < 0).any()) or bool((gram.abs() > 1 + _rounding(gram)).any()):
        raise ValueError(f"{NOT_CONVEX}.")  # no two atoms have a product larger than that of their norms
    if isinstance(problem.constraint, SumTo):
        right = problem.linear()
        lost = (energy.amax(-1) <= limits.tiny / limits.eps) & ((right != 0).any(-1) | (energy != 0).any(-1))
        if bool(lost.any()):
            raise VanishingAtomError
    elif not isinstance(problem.constraint, OnSupport):
        pull = problem.constraint.pull(problem.linear())
        if bool(((energy <= limits.tiny / limits.eps) & (pull > 0)).any()):
            raise VanishingAtomError


def _solve(problem: Problem, rule: SweepRule) -> Result:
    finite = problem.is_finite()
    search, codes_of = _sum_search(problem) if isinstance(problem.constraint, SumTo) else _search(problem)
    if isinstance(problem.constraint, OnSupport):
        search.solve_on_support(problem.constraint.mask > 0)
        done, n_iter = torch.ones_like(finite), 1
    else:
        done, n_iter = search.descend(rule.max_iter)
    codes = torch.where(finite[:, None], codes_of(), torch.nan)
    return Result(codes, done & finite, n_iter, float(n_iter))


def _search(problem: Problem) -> tuple["_Search", Callable[[], Tensor]]:
    """A search over atoms with norms around 1, and the codes in the problem's own units that it ends with."""
    energy = problem.energy()
    # Powers of two, so that codes at a bound stay exactly there.
    norms = power_of_two(energy.sqrt()).expand(problem.rhs.shape)
    gram = (problem.gram / norms[:, :, None] / norms[:, None, :]).nan_to_num(0, 0, 0)
    right = (problem.linear() / norms).nan_to_num(0, 0, 0)
    search = _Search(gram, right, (energy > 0).expand(right.shape), _limits(problem, norms))
    start = problem.start()
    search.begin(None if start is None else start * norms)
    return search, lambda: search.codes / norms


def _sum_search(problem: Problem) -> tuple["_Search", Callable[[], Tensor]]:
    constraint = problem.constraint
    assert isinstance(constraint, SumTo)
    gram = problem.gram.nan_to_num(0, 0, 0).expand(len(problem.rhs), *problem.gram.shape[-2:])
    search = _SumSearch(gram, problem.linear().nan_to_num(0, 0, 0), constraint.total)
    return search, search.all_codes


def _rounding(values: Tensor) -> float:
    """What a product of atoms of norm 1 may be off by."""
    return 32 * torch.finfo(values.dtype).eps * (values.shape[-1] + 8)


class _Limits(NamedTuple):
    """What the codes are held to, ``(n_signals, n_atoms)``."""

    lower: Tensor
    upper: Tensor
    threshold: Tensor  # weight of |a|


def _limits(problem: Problem, norms: Tensor) -> _Limits:
    constraint = problem.constraint
    if isinstance(constraint, Bounds):
        return _Limits(constraint.lower * norms, constraint.upper * norms, constraint.threshold / norms)
    return _at_least_zero(norms)


def _at_least_zero(like: Tensor) -> _Limits:
    zero = torch.zeros_like(like)
    return _Limits(zero, torch.full_like(like, torch.inf), zero)


class _Search:
    """Codes of problems whose atoms have norms around 1, and their supports."""

    def __init__(self, gram: Tensor, right: Tensor, usable: Tensor, limits: _Limits):
        self.gram, self.right, self.usable, self.limits = gram, right, usable, limits
        self.codes, self.free = torch.zeros_like(right), torch.zeros_like(usable)
        self.sign = torch.zeros_like(right)  # of the free codes that a threshold acts on
        self.noise = torch.ones_like(right)  # of products with an atom, in units of its norm
        self.barred = torch.zeros_like(usable)  # atoms that could not move, until another one has joined

    def gradient(self) -> Tensor:
        return self.right - (self.gram @ self.codes[:, :, None]).squeeze(-1)

    def solve_on_support(self, mask: Tensor) -> None:
        """Codes on a support; the second time for what rounding has left."""
        self.free = mask & self.usable
        for _ in range(2):
            self.codes = self.codes + self._step()

    def begin(self, start: Tensor | None) -> None:
        """Begin at allowed codes."""
        lower, upper, threshold = self.limits
        zero = torch.zeros_like(self.right)
        self.codes = (zero if start is None else start).maximum(lower).minimum(upper)
        inside = (self.codes > lower) & (self.codes < upper)
        self.free = inside & ((self.codes != 0) | (threshold == 0)) & self.usable
        self.sign = torch.where(self.free & (threshold > 0), self.codes.sign(), 0.0)

    def descend(self, max_iter: int) -> tuple[Tensor, int]:
        """Which problems are solved, and the steps that took."""
        settled = torch.zeros_like(self.free[:, 0])
        entering = torch.zeros_like(settled, dtype=torch.long)[:, None]
        left = self.codes.gather(-1, entering)  # where the code was when its atom was freed
        n_iter = 0
        while n_iter < max_iter and not bool(settled.all()):
            arrived = self._move()
            joined = arrived & (self.codes.gather(-1, entering) != left).squeeze(-1)
            self.barred = self.barred & ~joined[:, None]
            before = self.free
            following = self._free_another(arrived)
            entering = torch.where(arrived[:, None], following, entering)
            left = torch.where(arrived[:, None], self.codes.gather(-1, following), left)
            settled = arrived & (before == self.free).all(-1)
            n_iter += 1
        self._polish()
        return settled, n_iter

    def _polish(self) -> None:
        """Once more at the end, for what rounding and the ridge have left, where all codes stay inside."""
        low, high = self._ends()
        for _ in range(2):
            moved = self.codes + self._step()
            allowed = (((moved > low) & (moved < high)) | ~self.free).all(-1, keepdim=True)
            self.codes = torch.where(allowed & self.free, moved, self.codes)

    def _ends(self) -> tuple[Tensor, Tensor]:
        """How far free codes can go: to their bounds, or to zero, where a threshold changes sides."""
        lower, upper = self.limits.lower, self.limits.upper
        return torch.where(self.sign > 0, lower.clamp(min=0), lower), torch.where(
            self.sign < 0, upper.clamp(max=0), upper
        )

    def _slope(self) -> Tensor:
        """What pulls the free codes: the gradient, less the threshold on their side."""
        return self.gradient() - self.sign * self.limits.threshold

    def _gains(self) -> tuple[Tensor, Tensor]:
        """What pulls each code up, and down, against thresholds."""
        gradient, (lower, upper, threshold) = self.gradient(), self.limits
        up = gradient - torch.where(self.codes >= 0, threshold, -threshold)
        down = -gradient - torch.where(self.codes <= 0, threshold, -threshold)
        return torch.where(self.codes < upper, up, -torch.inf), torch.where(self.codes > lower, down, -torch.inf)

    def _sizes(self) -> Tensor:
        """The numbers that a gradient is the sum of, which say how well it is known."""
        return self.right.abs() + self.codes.abs().sum(-1, keepdim=True) + self.limits.threshold

    def _free_another(self, arrived: Tensor) -> Tensor:
        """Free the best atom off the support of the problems that have arrived, if it gains anything; returns it."""
        up, down = self._gains()
        gain = torch.maximum(up, down)
        useful = (gain > 8 * torch.finfo(gain.dtype).eps * self._sizes()) & arrived[:, None]
        useful = useful & ~self.free & ~self.barred & self.usable
        best = torch.where(useful, gain, -torch.inf).argmax(-1, keepdim=True)
        entering = torch.zeros_like(self.free).scatter(-1, best, useful.any(-1, keepdim=True))
        # The side of zero on which the code will be.
        side = torch.where(self.codes == 0, torch.where(up >= down, 1.0, -1.0), self.codes.sign())
        self.sign = torch.where(entering & (self.limits.threshold > 0), side, self.sign)
        self.free = self.free | entering
        return best

    def _move(self) -> Tensor:
        """Go to the optimum on the support, or to where the first code reaches an end; returns who has arrived."""
        return self._advance()[0]

    def _advance(self) -> tuple[Tensor, Tensor]:
        """A move; returns who has arrived, and what :meth:`_longest` said of the step."""
        step, (low, high) = self._step(), self._ends()
        moved = self.codes + step
        blocked = self.free & ((moved <= low) | (moved >= high))
        end = torch.where(step < 0, low, torch.where(step > 0, high, self.codes))
        part = torch.where(blocked, torch.where(self.codes == end, 0.0, (end - self.codes) / step), 1.0)
        longest = self._longest(step)
        length = torch.minimum(part.amin(-1, keepdim=True), longest)
        leaving = blocked & (part <= length)
        self.barred = self.barred | (leaving & (length == 0))
        moved = torch.where(self.free, (self.codes + length * step).maximum(low).minimum(high), self.codes)
        self.codes = torch.where(leaving, end, moved)
        self.free = self.free & ~leaving
        self.sign = torch.where(self.free, self.sign, 0.0)
        return ~blocked.any(-1), longest

    def _longest(self, step: Tensor) -> Tensor:
        """How much of a step can be taken for other reasons than the ends of codes, ``(n_signals, 1)``."""
        return torch.ones_like(step[:, :1])

    def _step(self) -> Tensor:
        """``G_SS^-1`` times the slope, zero off the support."""
        free = self.free.to(self.gram.dtype)
        system = self.gram * free[:, :, None] * free[:, None, :]
        level = 16 * torch.finfo(free.dtype).eps
        factor, failures = torch.linalg.cholesky_ex(system + self._ridge(level))
        if bool((failures > 0).any()):
            factor, failures = torch.linalg.cholesky_ex(system + self._ridge(_rounding(free)))
            if bool((failures > 0).any()):
                raise ValueError(f"{NOT_CONVEX}.")
        return torch.cholesky_solve((self._slope() * free)[:, :, None], factor).squeeze(-1)

    def _ridge(self, level: float) -> Tensor:
        return torch.diag_embed(torch.where(self.free, level * self.noise, 1.0))


class _SumSearch(_Search):
    """Codes of at least zero with a given sum, ``(n_signals, 1)``.

    One atom, the reference, takes what the others leave of the sum, and the others are measured from it, which leaves a
    problem of codes of at least zero. When nothing is left for it, another one becomes the reference.
    """

    def __init__(self, gram: Tensor, right: Tensor, total: Tensor):
        self.own_gram, self.own_right, self.total = gram, right, total
        energy = gram.diagonal(dim1=-2, dim2=-1)
        self.own_norms = energy.sqrt()
        best = (energy * total / 2 - right).argmin(-1, keepdim=True)
        self._measure_from(best)
        super().__init__(self.gram, self.right, self.usable, _at_least_zero(right))
        self.noise = self._noise()

    def _measure_from(self, reference: Tensor) -> None:
        gram, self.reference = self.own_gram, reference
        to_reference = gram.gather(-1, reference[:, :, None].expand(-1, gram.shape[-1], 1)).squeeze(-1)
        own = to_reference.gather(-1, reference)
        measured = gram - to_reference[:, :, None] - (to_reference - own)[:, None, :]
        energy = measured.diagonal(dim1=-2, dim2=-1)
        self.sizes = self.own_norms + self.own_norms.gather(-1, reference)
        # An atom that is nearly the reference has an energy lost in rounding, but the right-hand side may tell.
        energy = torch.maximum(energy, _rounding(gram) / 8 * self.sizes.square())
        measured = measured.diagonal_scatter(energy, dim1=-2, dim2=-1)
        self.usable = (energy > 0).scatter(-1, reference, False)
        self.norms = torch.where(self.usable, power_of_two(energy.sqrt()), 1.0)
        self.gram = measured / self.norms[:, :, None] / self.norms[:, None, :]
        right = self.own_right - self.own_right.gather(-1, reference) - self.total * (to_reference - own)
        self.right = right / self.norms

    def _noise(self) -> Tensor:
        """How much more rounding there is in products with an atom than its norm explains."""
        return (1 + (self.sizes / self.norms).square()).clamp(max=1 / (2 * _rounding(self.gram)))

    def _left(self) -> Tensor:
        """What the other codes leave of the sum."""
        return (self.total - (self.codes / self.norms).sum(-1, keepdim=True)).clamp(min=0)

    def all_codes(self) -> Tensor:
        """The codes in the problem's own units, with that of the reference."""
        return (self.codes / self.norms).scatter(-1, self.reference, self._left())

    def _sizes(self) -> Tensor:
        codes, of_reference = self.codes / self.norms, self.own_norms.gather(-1, self.reference)
        reach = (codes * self.sizes).sum(-1, keepdim=True) + 2 * of_reference * self._left()
        rights = self.own_right.abs() + self.own_right.gather(-1, self.reference).abs()
        return (rights + self.sizes * reach) / self.norms

    def _longest(self, step: Tensor) -> Tensor:
        used, left = (step / self.norms).sum(-1, keepdim=True), self._left()
        return torch.where((left <= used) & (used > 0), left / used, 2.0)

    def _move(self) -> Tensor:
        before = self.codes
        arrived, longest = self._advance()
        used_up = (longest <= 1) & (self._left() <= 4 * torch.finfo(longest.dtype).eps * self.total)
        if bool(used_up.any()):
            self._change_reference(used_up, (self.codes == before).all(-1, keepdim=True))
        return arrived & ~used_up.squeeze(-1)

    def _change_reference(self, rows: Tensor, stuck: Tensor) -> None:
        """In these rows, the atom with the largest code takes over; the old reference has none."""
        codes, old = self.codes / self.norms, self.reference
        self._measure_from(torch.where(rows, codes.argmax(-1, keepdim=True), old))
        self.free = self.free & self.usable
        self.codes = torch.where(self.usable, codes * self.norms, 0.0)
        self.noise = self._noise()
        # An atom that cannot move must wait until another one has joined.
        self.barred = self.barred | (torch.zeros_like(self.barred).scatter(-1, old, True) & rows & stuck)
