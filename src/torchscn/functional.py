"""Sparse coding as functions: validate, build the normal form, call the solver and the gradient rule."""

from dataclasses import replace
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from torchscn.constraints import Constraint, NonNegative, as_constraint, per_code
from torchscn.gradients import GRADIENT_RULES
from torchscn.kernels import VanishingAtomError
from torchscn.options import Options
from torchscn.problem import Problem, Solution, gram_matrix
from torchscn.solvers import SOLVERS
from torchscn.tensors import (
    as_rows,
    check_init,
    check_penalty,
    check_same_kind,
    check_tensor,
    full_precision,
    no_autocast,
)

__all__ = [
    "Model",
    "SignalModel",
    "certify_codes",
    "code",
    "enlarged",
    "nonneg_qp",
    "normal_problem",
    "scaled_constraint",
    "solve",
    "sparse_code",
]


def sparse_code(
    x: Tensor,
    dictionary: Tensor,
    lam1: float | Tensor = 0.0,
    lam2: float | Tensor = 0.0,
    *,
    solver: str = "auto",
    tol: float = 1e-6,
    max_iter: int | None = None,
    grad: str = "implicit",
    init: Tensor | None = None,
    constraint: str | Constraint = "non_negative",
) -> Tensor:
    r"""Sparse codes of ``x``, differentiable in ``x``, ``dictionary``, ``lam1``, ``lam2`` and bounds.

    Solves :math:`\min_a \tfrac12 \|x - a D\|^2 + \sum_j \lambda_{1,j} |a_j| + \tfrac{\lambda_2}{2} \|a\|^2` for every
    signal, over :math:`a \ge 0` unless another constraint is chosen. With both penalties 0 this is non-negative least
    squares.

    Args:
        x: signals ``(..., n_features)``, float32 or float64.
        dictionary: atoms as rows ``(n_atoms, n_features)``; or a batch of dictionaries ``(..., n_atoms, n_features)``,
            for one signal each (``x`` has a dimension less) or several each, ``x`` of shape ``(..., k, n_features)``.
            Those are solved exactly, whatever ``tol`` and ``init`` say.
        lam1: l1 penalty: a number, a scalar tensor, one value per atom ``(n_atoms,)``, or a tensor that broadcasts
            against the codes, ``(..., 1)`` for one per signal; numbers must not be negative.
        lam2: l2 penalty: a number or a scalar tensor. If it is above 0, the code is unique.
        solver: one of :func:`torchscn.list_solvers`.
        tol: relative accuracy of the codes. Where ``converged`` (of :func:`solve`) is True, they are within ten times
            ``tol`` of the exact ones, relative to their length, or as near as the dtype can tell. Values below
            rounding level are raised to it; 0 with a ``max_iter`` runs exactly that many iterations.
        max_iter: cap on the iterations; None uses the solver's own.
        grad: ``"implicit"`` differentiates the optimality conditions, ``"unrolled"`` every step of
            ``solver="fista"``.
        init: codes to start from, shaped like the result.
        constraint: which codes are allowed. ``"non_negative"``; ``"signed"``, all of them, so that the penalties make
            the classical lasso and elastic net; ``"sum_to_one"``, non-negative ones that sum to one; or an object with
            numbers of its own, :class:`torchscn.Bounds` or :class:`torchscn.SumTo`. Sums are solved exactly, whatever
            ``tol`` says, unless ``solver="fista"``.

    Returns:
        Codes ``(..., n_atoms)``. A signal with NaN or infinity gets NaN codes; the others are not affected.

    Note:
        Where atoms on the support are linearly dependent and ``lam2`` is 0, code and gradient are not unique; the
        gradient returned is the finite one of a rounding-level ridge. The gradient is that of the support that was
        found, so it is less accurate where a loose ``tol`` gets an entry of the support wrong.

    Example:
        >>> dictionary = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> sparse_code(torch.tensor([3.0, 4.0]), dictionary, lam1=0.5, tol=1e-6)
        tensor([0.0000, 0.0000, 4.5000])
    """
    model = SignalModel(dictionary, lam1, lam2, as_constraint(constraint))
    return code(x, model, Options(solver, tol, max_iter, grad), init)


def solve(
    x: Tensor,
    dictionary: Tensor,
    lam1: float | Tensor = 0.0,
    lam2: float | Tensor = 0.0,
    *,
    solver: str = "auto",
    tol: float = 1e-6,
    max_iter: int | None = None,
    init: Tensor | None = None,
    constraint: str | Constraint = "non_negative",
) -> Solution:
    """Sparse codes with their certificate, without a gradient; arguments as for :func:`sparse_code`.

    Returns:
        :class:`Solution` with ``codes``, ``residual``, ``converged`` and ``n_iter``.

    Example:
        >>> solution = solve(torch.tensor([[3.0, 4.0]]), torch.eye(2), lam1=0.5)
        >>> solution.codes, solution.converged
        (tensor([[2.5000, 3.5000]]), tensor([True]))
    """
    model = SignalModel(dictionary, lam1, lam2, as_constraint(constraint))
    return certify_codes(x, model, Options(solver, tol, max_iter), init)


def nonneg_qp(
    rhs: Tensor,
    gram: Tensor,
    *,
    solver: str = "auto",
    tol: float = 1e-6,
    max_iter: int | None = None,
    grad: str = "implicit",
    init: Tensor | None = None,
    constraint: str | Constraint = "non_negative",
) -> Tensor:
    """Minimise ``a G a' / 2 - rhs a'`` for every row of ``rhs``: the normal form itself.

    Over ``a >= 0``, or under another constraint, where ``Bounds(threshold=lam1)`` stands for a penalty on ``|a|``.
    Differentiable in ``rhs``, ``gram`` and bounds. Only the symmetric part of ``gram`` is used, which must be positive
    semi-definite. An atom whose diagonal entry is 0 gets the allowed code nearest to 0, unless codes have a fixed sum.
    Options as for :func:`sparse_code`.

    Args:
        rhs: ``(..., n_atoms)``.
        gram: ``(n_atoms, n_atoms)``, shared by all rows; or a batch of them ``(..., n_atoms, n_atoms)``, read as in
            :func:`sparse_code`.

    Returns:
        Tensor with the shape of ``rhs``.

    Example:
        >>> nonneg_qp(torch.tensor([1.0, -1.0]), torch.eye(2))
        tensor([1., 0.])
    """
    options = Options(solver, tol, max_iter, grad)
    rhs, gram = full_precision(rhs, gram)
    check_tensor("rhs", rhs)
    check_tensor("gram", gram)
    check_same_kind("rhs", rhs, "gram", gram)
    n_atoms = rhs.shape[-1] if rhs.dim() else 0
    if n_atoms == 0 or tuple(gram.shape[-2:]) != (n_atoms, n_atoms):
        raise ValueError(
            f"gram must be square with one row per entry of rhs's last dimension; "
            f"got gram {tuple(gram.shape)} and rhs {tuple(rhs.shape)}."
        )
    with no_autocast(rhs):
        rhs, gram = _paired(rhs, gram, f"rhs {tuple(rhs.shape)} and gram {tuple(gram.shape)}")
        allowed = as_constraint(constraint)
        if allowed.is_separable:
            # Without energy nothing bounds a code, so it is not asked for.
            least = rhs.clamp(max=0) if isinstance(allowed, NonNegative) else torch.zeros_like(rhs)
            rhs = torch.where(gram.diagonal(dim1=-2, dim2=-1) == 0, least, rhs)
        return differentiable(rhs, (gram + gram.mT) / 2, 0.0, options, init, allowed)


class Model(Protocol):
    """Atoms and penalties, as this module sees them: for dense signals here, for patches in :mod:`torchscn.patches`."""

    @property
    def dictionary(self) -> Tensor:
        """The atoms, one after the other in the first dimension."""

    @property
    def atom_dim(self) -> int:
        """The dimension of the atoms in the codes, counted from the end."""

    @property
    def constraint(self) -> Constraint:
        """Which codes are allowed."""

    def scaled(self, factor: Tensor) -> Self:
        """The model whose codes are those of this one divided by ``factor``: larger atoms, and penalties to match."""

    def check(self, x: Any) -> tuple[Tensor, Self]:
        """Input and model in a precision to solve in; raises an error if something is wrong with them."""

    def normal_form(self, x: Tensor) -> tuple[Tensor, Tensor, float | Tensor]:
        """Correlations ``D x`` with atoms last, Gram matrix, and what to subtract from the correlations per atom."""


M = TypeVar("M", bound=Model)


class SignalModel(NamedTuple):
    """Atoms and penalties for signals ``(..., n_features)``."""

    dictionary: Tensor
    lam1: float | Tensor
    lam2: float | Tensor
    constraint: Constraint

    @property
    def atom_dim(self) -> int:
        return -1

    def scaled(self, factor: Tensor) -> "SignalModel":
        constraint = scaled_constraint(self.constraint, factor)
        return SignalModel(self.dictionary * factor, self.lam1 * factor, self.lam2 * factor * factor, constraint)

    def check(self, x: Any) -> tuple[Tensor, "SignalModel"]:
        x, dictionary, lam1, lam2 = full_precision(x, *self[:3])
        _check_dense(x, dictionary, lam1, lam2)
        return x, SignalModel(dictionary, lam1, lam2, self.constraint)

    def normal_form(self, x: Tensor) -> tuple[Tensor, Tensor, float | Tensor]:
        D = self.dictionary
        if D.dim() == 2:
            return x @ D.mT, gram_matrix(D, self.lam2), self.lam1
        shapes = f"x {tuple(x.shape)} and dictionary {tuple(D.shape)}"
        signals, atoms = _paired(x, D, shapes)
        gram = D @ D.mT + self.lam2 * torch.eye(D.shape[-2], dtype=D.dtype, device=D.device)
        return (atoms @ signals[..., None]).squeeze(-1), _paired(x, gram, shapes)[1], self.lam1


def _paired(rows: Tensor, matrix: Tensor, shapes: str) -> tuple[Tensor, Tensor]:
    """Rows and the matrix for all of them; or, where there is a batch of matrices, a matrix for every row."""
    if matrix.dim() == 2:
        return rows, matrix
    matrices = matrix if rows.dim() < matrix.dim() else matrix[..., None, :, :]
    try:
        batch = torch.broadcast_shapes(rows.shape[:-1], matrices.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"the batches of {shapes} do not go together: matrices (..., n, m) take one row each, (..., m), or several "
            "each, (..., k, m)."
        ) from None
    return rows.expand(*batch, rows.shape[-1]), matrices.expand(*batch, *matrix.shape[-2:])


def code(x: Tensor, model: Model, options: Options, init: Tensor | None = None) -> Tensor:
    """Codes, differentiable by the chosen gradient rule."""
    x, model = model.check(x)
    with no_autocast(x):
        try:
            return _code(x, model, options, init)
        except VanishingAtomError:
            # The Gram matrix has lost small atoms to underflow; larger ones have codes smaller by the same factor.
            larger, factor = enlarged(model)
            return factor * _code(x, larger, options, None if init is None else init / factor)


def _code(x: Tensor, model: Model, options: Options, init: Tensor | None) -> Tensor:
    rhs, gram, lam1 = model.normal_form(x)
    return differentiable(rhs, gram, lam1, options, init, model.constraint).movedim(-1, model.atom_dim)


def scaled_constraint(constraint: Constraint, factor: Tensor) -> Constraint:
    """The constraint for a dictionary times a factor, whose codes are smaller by it."""
    scaled = constraint.scaled(1 / factor, factor)
    if scaled is None:
        raise VanishingAtomError
    return scaled


def enlarged(model: M) -> tuple[M, Tensor]:
    """The same problem with the largest entry of the dictionary around 1, and what its codes are to be times."""
    size = model.dictionary.detach().abs().amax()
    factor = torch.exp2((1 - torch.frexp(size).exponent).to(size.dtype))
    return model.scaled(factor), factor


def certify_codes(x: Tensor, model: Model, options: Options, init: Tensor | None = None) -> Solution:
    """Codes with their certificate, without a gradient."""
    x, model = model.check(x)
    with torch.no_grad(), no_autocast(x):
        try:
            return _certify(x, model, options, init)
        except VanishingAtomError:
            larger, factor = enlarged(model)
            solution = _certify(x, larger, options, None if init is None else init / factor)
            # A gradient entry is a product with an atom, so it is larger by the factor; a code is smaller.
            return replace(solution, codes=factor * solution.codes, residual=solution.residual / factor)


def _certify(x: Tensor, model: Model, options: Options, init: Tensor | None) -> Solution:
    rhs, gram, lam1 = model.normal_form(x)
    problem = normal_problem(rhs, gram, lam1, init, model.constraint)
    result = SOLVERS[options.solver](problem, options)
    residual, leading = problem.residual(result.codes), rhs.shape[:-1]
    codes = result.codes.reshape(rhs.shape).movedim(-1, model.atom_dim)
    converged, n_iter, mean_iter = result.converged.reshape(leading), int(result.n_iter), float(result.mean_iter)
    return Solution(codes, residual.reshape(leading), converged, n_iter, mean_iter)


def differentiable(
    rhs: Tensor, gram: Tensor, lam1: float | Tensor, options: Options, init: Tensor | None, constraint: Constraint
) -> Tensor:
    """Codes of the normal form, for any leading shape of ``rhs``, differentiable by the chosen gradient rule."""
    problem = normal_problem(rhs, gram, lam1, init, constraint)
    return GRADIENT_RULES[options.grad](problem, options).reshape(rhs.shape)


def normal_problem(
    rhs: Tensor, gram: Tensor, lam1: float | Tensor, init: Tensor | None, constraint: Constraint
) -> Problem:
    """One problem per signal of ``rhs (..., n_atoms)``; ``lam1`` is one number, one per atom, or one per code."""
    if init is not None:
        (init,) = full_precision(init)
        check_init(init, rhs)
        init = as_rows(init)
    fitted, shift = constraint.fit(rhs, gram), None
    with_penalty = fitted.penalised(lam1, rhs, gram)
    if with_penalty is not None:
        fitted = with_penalty
    elif isinstance(lam1, Tensor) and lam1.dim() > 1:
        rhs = rhs - per_code("lam1", lam1, rhs, gram).reshape(rhs.shape)
    elif isinstance(lam1, Tensor):
        shift = lam1.expand(rhs.shape[-1])
    elif lam1:
        # Made from the Gram matrix, so that vmap over signals does not take it for one per signal.
        shift = gram.new_full(rhs.shape[-1:], lam1)
    rows = as_rows(rhs)
    if gram.dim() > 2:
        gram = gram.reshape(len(rows), *gram.shape[-2:])
    return Problem(rows, gram, shift, init, fitted)


def _check_dense(x: Any, dictionary: Any, lam1: Any, lam2: Any) -> None:
    check_tensor("x", x)
    check_tensor("dictionary", dictionary)
    check_same_kind("x", x, "dictionary", dictionary)
    if dictionary.dim() < 2 or 0 in dictionary.shape[-2:]:
        raise ValueError(
            f"dictionary must have shape (n_atoms, n_features), atoms as rows; got {tuple(dictionary.shape)}."
        )
    n_atoms, n_own_features = dictionary.shape[-2:]
    if x.dim() == 0 or x.shape[-1] != n_own_features:
        n_features = "no" if x.dim() == 0 else x.shape[-1]
        hint = " Atoms are rows: did you pass the transpose?" if x.dim() and x.shape[-1] == n_atoms else ""
        raise ValueError(
            f"x has {n_features} features but the dictionary's atoms have {n_own_features} "
            f"(shapes {tuple(x.shape)} and {tuple(dictionary.shape)}).{hint}"
        )
    check_penalty("lam1", lam1, dictionary, n_atoms)
    check_penalty("lam2", lam2, dictionary, None)
