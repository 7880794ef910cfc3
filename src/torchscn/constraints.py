"""Which codes are allowed, one class for each constraint, and what each of them means for the derivatives.

A user names a constraint (``constraint="signed"``) or passes one with numbers or tensors (``Bounds(0, 1)``); ``fit``
makes its fields tensors that belong to one batch of problems.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from torchscn.checks import Registry, check_choice
from torchscn.tensors import as_rows, is_readable

__all__ = [
    "CONSTRAINTS",
    "NAMED_CONSTRAINTS",
    "Bounds",
    "Constraint",
    "NonNegative",
    "OnSupport",
    "SolveOnSupport",
    "SumTo",
    "as_constraint",
    "per_code",
    "row_products",
]

SolveOnSupport = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``gamma`` with ``gamma G = rhs`` on a support, and zero elsewhere, from rhs, Gram matrix and support."""


def row_products(codes: Tensor, gram: Tensor) -> Tensor:
    """Every row of ``codes`` times the matrix for all, or its own."""
    return codes @ gram if gram.dim() == 2 else (codes[:, None, :] @ gram).squeeze(1)


class Constraint(ABC):
    """Which codes are allowed. A subclass is a frozen dataclass of at most three fields, all tensors once fitted.

    ``kind`` is its name in :data:`CONSTRAINTS`. Operators do not take objects, so a constraint is passed to them as its
    kind and its tensors: one dimension is one value per atom, two are one row per signal. All methods work on
    ``(n_signals, n_atoms)``.
    """

    kind: ClassVar[str]

    @abstractmethod
    def project(self, codes: Tensor) -> Tensor:
        """The nearest codes that are allowed."""

    @abstractmethod
    def movable(self, codes: Tensor) -> Tensor:
        """The support: positive where a code can move both ways, of the codes' dtype."""

    def project_atom(self, values: Tensor, atom: int) -> Tensor:
        """:meth:`project` for the codes of one atom, ``(n_signals,)``, where atoms do not depend on each other."""
        raise TypeError(
            f"codes under the constraint {self.kind!r} cannot be updated one at a time; use solver='fista'."
        )

    def settle(self, moved: Tensor, length: float | Tensor) -> Tensor:
        """What codes become that a gradient step of this length has moved; penalties of the constraint act here."""
        return self.project(moved)

    def settle_atom(self, moved: Tensor, atom: int, length: Tensor) -> Tensor:
        """:meth:`settle` for the codes of one atom."""
        return self.project_atom(moved, atom)

    def pull(self, linear: Tensor) -> Tensor:
        """The part of the right-hand side that can make a code, as sizes."""
        return linear.abs()

    @property
    def is_separable(self) -> bool:
        """Whether atoms do not depend on each other, so that :meth:`project_atom` exists."""
        return type(self).project_atom is not Constraint.project_atom

    def residual(self, codes: Tensor, grad: Tensor) -> Tensor:
        """How far a gradient step would move each code, zero exactly at the optimum."""
        return codes - self.settle(codes - grad, 1.0)

    def tensors(self) -> tuple[Tensor, ...]:
        """The fields of the constraint: ``CONSTRAINTS[kind](*tensors)`` recreates it."""
        return tuple(vars(self).values())

    def fit(self, rhs: Tensor, gram: Tensor) -> Self:
        """The constraint with tensors for the codes of ``rhs (..., n_atoms)``; raises an error if they do not fit."""
        return self

    def penalised(self, lam1: float | Tensor, rhs: Tensor, gram: Tensor) -> "Constraint | None":
        """The constraint with an l1 penalty as part of it; None where the right-hand side can take it on.

        It can where no code is negative, since then the penalty is linear.
        """
        return None

    def regular_form(self, rhs: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
        """Another right-hand side and Gram matrix with the same optimum, where those given need not have just one."""
        return rhs, gram

    def take(self, rows: Tensor) -> Self:
        """The constraint for the chosen signals."""
        return type(self)(*(tensor[rows] if tensor.dim() == 2 else tensor for tensor in self.tensors()))

    def scaled(self, size: Tensor, unit: Tensor) -> "Constraint | None":
        """The constraint where the right-hand side is divided by ``size`` and codes are by ``unit``; None for none."""
        return None

    def ridge(self, dtype: torch.dtype) -> float:
        """Relative addition to the diagonal where the system would otherwise have no finite solution."""
        return 0.0

    def backward(
        self, solve: SolveOnSupport, grad: Tensor, gram: Tensor, codes: Tensor, of_tensors: bool
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Gradients in the right-hand side and in the constraint's tensors, which are summed to their shapes later.

        Args:
            solve: solves the linear system of the codes that can move.
            grad: gradient in the codes.
            gram: Gram matrix for all signals, or one each.
            codes: the solution.
            of_tensors: whether gradients in the constraint's tensors are needed; None stands for each otherwise.
        """
        return solve(grad, gram, self.movable(codes)), (None,) * len(self.tensors())

    def tangent(
        self, solve: SolveOnSupport, change: Tensor, gram: Tensor, codes: Tensor, tangents: tuple[Tensor | None, ...]
    ) -> Tensor:
        """Tangent of the codes for a change of the right-hand side and for tangents of the constraint's tensors."""
        return solve(change, gram, self.movable(codes))


CONSTRAINTS: Registry[type[Constraint]] = Registry("constraint")


@CONSTRAINTS.register("non_negative")
@dataclass(frozen=True)
class NonNegative(Constraint):
    """No code below zero: the paper's constraint, and the default.

    Example:
        >>> NonNegative().project(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """

    kind = "non_negative"

    def project(self, codes: Tensor) -> Tensor:
        return codes.relu()

    def project_atom(self, values: Tensor, atom: int) -> Tensor:
        return values.clamp(min=0)

    def pull(self, linear: Tensor) -> Tensor:
        return linear.relu()

    def movable(self, codes: Tensor) -> Tensor:
        # The codes are positive exactly where they can move, so they serve as they are.
        return codes

    def residual(self, codes: Tensor, grad: Tensor) -> Tensor:
        return torch.minimum(codes, grad)

    def scaled(self, size: Tensor, unit: Tensor) -> "NonNegative":
        return self


@CONSTRAINTS.register("on_support")
@dataclass(frozen=True)
class OnSupport(Constraint):
    """Free on a support and zero elsewhere: one linear system per signal, the backward form of every constraint.

    Args:
        mask: ``(n_signals, n_atoms)``, positive on the support.
    """

    mask: Tensor
    kind = "on_support"

    def project(self, codes: Tensor) -> Tensor:
        return codes * (self.mask > 0)

    def project_atom(self, values: Tensor, atom: int) -> Tensor:
        return values * (self.mask[:, atom] > 0)

    def pull(self, linear: Tensor) -> Tensor:
        return self.project(linear).abs()

    def movable(self, codes: Tensor) -> Tensor:
        return self.mask

    def scaled(self, size: Tensor, unit: Tensor) -> "OnSupport":
        return self

    def ridge(self, dtype: torch.dtype) -> float:
        # Where atoms on the support are linearly dependent, this picks one of many solutions.
        return 16 * torch.finfo(dtype).eps


@CONSTRAINTS.register("bounds")
@dataclass(frozen=True)
class Bounds(Constraint):
    """Codes between two bounds each, with a penalty on their size: ``Bounds()`` are signed codes.

    Args:
        lower, upper: numbers, one per atom ``(n_atoms,)``, or one per code ``(..., n_atoms)`` (``(..., 1)`` for one per
            signal); infinite ones leave a code free on that side. Codes are differentiable in them.
        threshold: weight of ``|a|``, shaped in the same way; ``lam1`` of a call is added to it.

    Example:
        >>> Bounds(-1, 1).fit(torch.zeros(2), torch.eye(2)).project(torch.tensor([-3.0, 0.5]))
        tensor([-1.0000,  0.5000])
    """

    lower: Any = -math.inf
    upper: Any = math.inf
    threshold: Any = 0.0
    kind = "bounds"

    def fit(self, rhs: Tensor, gram: Tensor) -> "Bounds":
        fitted = {name: per_code(name, value, rhs, gram) for name, value in vars(self).items()}
        _check_values("lower", fitted["lower"], lambda bound: bound < math.inf, "below infinity")
        _check_values("upper", fitted["upper"], lambda bound: bound > -math.inf, "above -infinity")
        _check_values("threshold", fitted["threshold"], _is_weight, "finite and at least 0")
        if is_readable(fitted["lower"]) and is_readable(fitted["upper"]):
            crossed = fitted["lower"] > fitted["upper"]
            if bool(crossed.any()):
                low, high = (fitted[name].expand(crossed.shape)[crossed][0] for name in ("lower", "upper"))
                atom = int(crossed.nonzero()[0, -1])
                raise ValueError(f"lower must not be above upper; atom {atom} has {low:g} and {high:g}.")
        return Bounds(**fitted)

    def penalised(self, lam1: float | Tensor, rhs: Tensor, gram: Tensor) -> "Bounds":
        penalty = per_code("lam1", lam1, rhs, gram)
        _check_values("lam1", penalty, _is_weight, "finite and at least 0, for codes may be negative")
        return replace(self, threshold=self.threshold + penalty)

    def project(self, codes: Tensor) -> Tensor:
        return codes.maximum(self.lower).minimum(self.upper)

    def project_atom(self, values: Tensor, atom: int) -> Tensor:
        return values.maximum(self.lower[..., atom]).minimum(self.upper[..., atom])

    def settle(self, moved: Tensor, length: float | Tensor) -> Tensor:
        return self.project(_shrunk(moved, self.threshold * length))

    def settle_atom(self, moved: Tensor, atom: int, length: Tensor) -> Tensor:
        return self.project_atom(_shrunk(moved, self.threshold[..., atom] * length), atom)

    def pull(self, linear: Tensor) -> Tensor:
        start = self.project(torch.zeros_like(linear))
        moves = torch.where(linear > 0, self.upper > start, self.lower < start)
        return torch.where(moves, linear.abs(), 0.0)

    def movable(self, codes: Tensor) -> Tensor:
        inside = (codes > self.lower) & (codes < self.upper)
        free: Tensor = inside & ((codes != 0) | (self.threshold == 0))
        return free.to(codes.dtype)

    def scaled(self, size: Tensor, unit: Tensor) -> "Bounds":
        return Bounds(_divided(self.lower, unit), _divided(self.upper, unit), _divided(self.threshold, size))

    def backward(
        self, solve: SolveOnSupport, grad: Tensor, gram: Tensor, codes: Tensor, of_tensors: bool
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        gamma = solve(grad, gram, self.movable(codes))
        if not of_tensors:
            return gamma, (None, None, None)
        # A code that moves with its bound pulls the others along.
        of_fixed = grad - row_products(gamma, gram)
        at_lower, at_upper = self._at_bounds(codes)
        return gamma, (of_fixed * at_lower, of_fixed * at_upper, -codes.sign() * gamma)

    def tangent(
        self, solve: SolveOnSupport, change: Tensor, gram: Tensor, codes: Tensor, tangents: tuple[Tensor | None, ...]
    ) -> Tensor:
        lower, upper, threshold = tangents
        fixed = torch.zeros_like(codes)
        for bound, is_there in zip((lower, upper), self._at_bounds(codes), strict=True):
            fixed = fixed if bound is None else fixed + bound * is_there
        change = change - row_products(fixed, gram)
        change = change if threshold is None else change - codes.sign() * threshold
        return fixed + solve(change, gram, self.movable(codes))

    def _at_bounds(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Which codes are at their lower bound, and which at the upper one only."""
        at_lower = codes <= self.lower
        return at_lower, (codes >= self.upper) & ~at_lower


@CONSTRAINTS.register("sum_to")
@dataclass(frozen=True)
class SumTo(Constraint):
    """No code below zero, and all codes of a signal sum to ``total``: abundances, mixtures, probabilities.

    Args:
        total: a number above 0, or one per signal ``(..., 1)``. Codes are differentiable in it.

    Example:
        >>> SumTo().fit(torch.zeros(3), torch.eye(3)).project(torch.tensor([[2.0, 1.5, -1.0]]))
        tensor([[0.7500, 0.2500, 0.0000]])
    """

    total: Any = 1.0
    kind = "sum_to"

    def fit(self, rhs: Tensor, gram: Tensor) -> "SumTo":
        total = _as_tensor("total", self.total, rhs, gram)
        wanted = (*rhs.shape[:-1], 1)
        try:
            total = as_rows(total.expand(wanted))
        except RuntimeError:
            raise ValueError(
                f"total must be one number or one per signal, shape {wanted}; got {tuple(total.shape)}."
            ) from None
        _check_values("total", total, lambda value: (value > 0) & (value < math.inf), "finite and above 0")
        return SumTo(total)

    def project(self, codes: Tensor) -> Tensor:
        # The codes above a level, lowered by it: the level is found by trying every number of codes that stay.
        sorted_codes = codes.sort(dim=-1, descending=True).values
        counts = torch.arange(1, codes.shape[-1] + 1, dtype=codes.dtype, device=codes.device)
        levels = (sorted_codes.cumsum(-1) - self.total) / counts
        n_kept = (sorted_codes > levels).sum(-1, keepdim=True).clamp(min=1)
        lowered: Tensor = codes - levels.gather(-1, n_kept - 1)
        return lowered.relu()

    def movable(self, codes: Tensor) -> Tensor:
        return codes

    def scaled(self, size: Tensor, unit: Tensor) -> "SumTo":
        return SumTo(_divided(self.total, unit))

    def regular_form(self, rhs: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
        # The same number added to every entry of the Gram matrix changes nothing where the sum is fixed, and atoms may
        # then depend on each other: a zero atom, or more atoms than features, can still have just one code.
        largest = gram.detach().diagonal(dim1=-2, dim2=-1).amax(-1)
        largest = torch.where(largest > 0, largest, 1.0)
        return rhs + self.total * (largest[:, None] if gram.dim() == 3 else largest), gram + largest[..., None, None]

    def backward(
        self, solve: SolveOnSupport, grad: Tensor, gram: Tensor, codes: Tensor, of_tensors: bool
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        gamma, level = self._with_sum(solve, grad, gram, codes, torch.zeros_like(self.total))
        return gamma, (level,)

    def tangent(
        self, solve: SolveOnSupport, change: Tensor, gram: Tensor, codes: Tensor, tangents: tuple[Tensor | None, ...]
    ) -> Tensor:
        total = torch.zeros_like(self.total) if tangents[0] is None else tangents[0]
        return self._with_sum(solve, change, gram, codes, total)[0]

    def _with_sum(
        self, solve: SolveOnSupport, rhs: Tensor, gram: Tensor, codes: Tensor, total: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The solution on the support for a right-hand side less a level, which makes it sum to ``total``."""
        _, regular = self.regular_form(rhs, gram)
        free, along = solve(rhs, regular, codes), solve(torch.ones_like(rhs), regular, codes)
        sum_along = along.sum(-1, keepdim=True)
        # Signals without a solution have no support.
        level = torch.where(sum_along > 0, (free.sum(-1, keepdim=True) - total) / sum_along, 0.0)
        return free - level * along, level


NAMED_CONSTRAINTS: dict[str, Constraint] = {
    "non_negative": NonNegative(),
    "signed": Bounds(),
    "sum_to_one": SumTo(),
}


def as_constraint(constraint: Any) -> Constraint:
    """The constraint that a user named or passed.

    Example:
        >>> as_constraint("signed")
        Bounds(lower=-inf, upper=inf, threshold=0.0)
    """
    if isinstance(constraint, str):
        check_choice("constraint", constraint, NAMED_CONSTRAINTS)
        return NAMED_CONSTRAINTS[constraint]
    if not isinstance(constraint, Constraint):
        raise TypeError(
            f"constraint must be one of {', '.join(map(repr, NAMED_CONSTRAINTS))}, or an object such as "
            f"torchscn.Bounds(0, 1); got {type(constraint).__name__}."
        )
    return constraint


def _shrunk(values: Tensor, by: Tensor) -> Tensor:
    """Values drawn towards zero, at most up to it."""
    return values.sign() * (values.abs() - by).relu()


def _divided(value: Any, by: Tensor) -> Tensor:
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=by.dtype, device=by.device)
    return tensor / by


def _as_tensor(what: str, value: Any, rhs: Tensor, gram: Tensor) -> Tensor:
    if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        value = value.to(rhs.dtype)  # as what autocast makes
    if not isinstance(value, Tensor) or not value.is_floating_point():
        try:
            # Like the Gram matrix, so that vmap over signals does not take it for one per signal.
            return torch.as_tensor(value, dtype=gram.dtype, device=gram.device)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"{what} must be a number, a tensor or a list of numbers; got {value!r}.") from None
    if value.dtype != rhs.dtype or value.device != rhs.device:
        raise TypeError(
            f"{what} is {value.dtype} on {value.device} but the problem is {rhs.dtype} on {rhs.device}; convert it."
        )
    return value


def per_code(what: str, value: Any, rhs: Tensor, gram: Tensor) -> Tensor:
    """One value per atom, or one row per signal."""
    tensor = _as_tensor(what, value, rhs, gram)
    shape = rhs.shape[-1:] if tensor.dim() < 2 else rhs.shape
    try:
        return as_rows(tensor.expand(shape)) if tensor.dim() > 1 else tensor.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"{what} must be one number, one per atom, shape ({rhs.shape[-1]},), or broadcast against the codes, "
            f"shape {tuple(rhs.shape)}; got {tuple(tensor.shape)}."
        ) from None


def _is_weight(values: Tensor) -> Tensor:
    return (values >= 0) & (values < math.inf)


def _check_values(what: str, values: Tensor, is_allowed: Callable[[Tensor], Tensor], rule: str) -> None:
    if not is_readable(values):
        return
    wrong = ~is_allowed(values)
    if bool(wrong.any()):
        raise ValueError(f"{what} must be {rule}; got {float(values[wrong][0]):g}.")
