"""Signed codes, bounds and sums on random problems, against other people's programs for each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.optimize
import torch
from sklearn.linear_model import ElasticNet

import torchscn
from tools.fuzz.outcome import Outcome, Report
from tools.fuzz.problems import N_SIGNALS, Array, Case, draw
from tools.fuzz.solvers import forced_kernel
from torchscn.constraints import Constraint
from torchscn.kernels import available_kernels

__all__ = ["run"]

MOST_ATOMS = 33  # the other programs take long for more
LARGEST_GAP = 1e-9  # of the objective in float64, relative to what there is to explain
ROUNDING = 100.0  # multiples of eps that a gap may have besides
TOLERANCES = (1e-3, 1e-6, 1e-10)


@dataclass(frozen=True)
class Constrained:
    """A case under a constraint, as least squares: minimise ``||matrix a - target||^2 / 2 + threshold |a|``."""

    case: Case
    constraint: Constraint
    lower: Array
    upper: Array
    threshold: float  # of signed codes; other penalties are part of the matrix and target
    total: float | None

    def stacked(self) -> tuple[Array, Array]:
        """Matrix and one target per signal, in float64."""
        D, x = self.case.dictionary.astype(np.float64), self.case.x.astype(np.float64)
        ridge = np.sqrt(self.case.lam2)
        rows = np.zeros((len(x), len(D)))
        if ridge > 0 and self.threshold == 0:
            rows -= self.case.lam1.astype(np.float64) * np.where(self.upper <= 0, -1, 1) / ridge
        return np.vstack([D.T, ridge * np.eye(len(D))]), np.hstack([x, rows])

    def value(self, codes: Array) -> Array:
        matrix, targets = self.stacked()
        misfit = ((codes @ matrix.T - targets) ** 2).sum(-1) / 2
        found: Array = misfit + self.threshold * np.abs(codes).sum(-1)
        return found


def _signed(case: Case, random: np.random.Generator) -> Constrained:
    penalty = float(np.median(np.abs(case.x.astype(np.float64) @ case.dictionary.T.astype(np.float64))))
    penalty = float(case.x.dtype.type(penalty * random.choice([0.03, 0.3, 1.0])))
    n_atoms = len(case.dictionary)
    case = replace(case, lam1=np.full(n_atoms, penalty, dtype=case.x.dtype))
    free = np.full(n_atoms, np.inf)
    return Constrained(case, torchscn.Bounds(), -free, free, penalty, None)


def _bounds(case: Case, random: np.random.Generator) -> Constrained:
    n_atoms, dtype = len(case.dictionary), case.x.dtype
    size = 10.0 ** random.uniform(-2, 1)
    ends = np.sort(size * random.standard_normal((2, n_atoms)), axis=0)
    ends[0] -= 1e-3 * size  # the other program does not take equal ones
    lower, upper = np.where(random.random((2, n_atoms)) < 0.3, [[-np.inf], [np.inf]], ends).astype(dtype)
    lower = np.where(random.random(n_atoms) < 0.2, np.minimum(0, upper - size), lower).astype(dtype)
    lam1 = np.where((lower >= 0) | (upper <= 0), case.lam1, 0) if case.lam2 > 0 else np.zeros(n_atoms)
    case = replace(case, lam1=lam1.astype(dtype))
    constraint = torchscn.Bounds(torch.from_numpy(lower), torch.from_numpy(upper))
    return Constrained(case, constraint, lower.astype(np.float64), upper.astype(np.float64), 0.0, None)


def _sum(case: Case, random: np.random.Generator) -> Constrained:
    n_atoms, dtype = len(case.dictionary), case.x.dtype
    total = 1.0 if random.random() < 0.5 else float(dtype.type(10.0 ** random.uniform(-2, 2)))
    if case.lam2 == 0:
        case = replace(case, lam1=np.zeros(n_atoms, dtype=dtype))
    return Constrained(case, torchscn.SumTo(total), np.zeros(n_atoms), np.full(n_atoms, np.inf), 0.0, total)


def _by_scikit_learn(matrix: Array, target: Array, problem: Constrained) -> Array:
    model = ElasticNet(
        alpha=problem.threshold / len(matrix), l1_ratio=1.0, fit_intercept=False, tol=1e-15, max_iter=200_000
    )
    codes: Array = model.fit(matrix, target).coef_
    return codes


def _by_lsq_linear(matrix: Array, target: Array, problem: Constrained) -> Array:
    bounds = (problem.lower, problem.upper)
    codes: Array = scipy.optimize.lsq_linear(matrix, target, bounds, method="bvls", tol=1e-15, max_iter=1000).x
    return codes


def _by_nearest_point(matrix: Array, target: Array, problem: Constrained) -> Array:
    """The point of a polytope nearest to the origin is a non-negative least-squares problem."""
    assert problem.total is not None
    corners = problem.total * matrix - target[:, None]
    size = np.abs(corners).max()
    weights, _ = scipy.optimize.nnls(np.vstack([corners / size, np.ones(len(matrix.T))]), np.eye(len(matrix) + 1)[-1])
    codes: Array = problem.total * weights / weights.sum()
    return codes


KINDS: dict[str, tuple[Callable[[Case, np.random.Generator], Constrained], Callable[..., Array], tuple[str, ...]]] = {
    "signed codes": (_signed, _by_scikit_learn, ("auto", "coordinate", "active_set", "fista")),
    "bounds": (_bounds, _by_lsq_linear, ("auto", "coordinate", "active_set", "fista")),
    "sum": (_sum, _by_nearest_point, ("auto", "active_set", "fista")),
}


def run(n_problems: int, seed: int, report: Report) -> list[Outcome]:
    """Fuzz every constraint, solvers taking turns, with about ``n_problems`` problems each; less in plain torch."""
    outcomes = []
    for kind in KINDS:
        for kernel in (available_kernels()[-1], "torch"):
            share = n_problems if kernel != "torch" else n_problems // 10
            with forced_kernel(kernel):
                outcomes.append(_try_kind(kind, kernel, share, seed, report))
    return outcomes


def _try_kind(kind: str, kernel: str, n_problems: int, seed: int, report: Report) -> Outcome:
    counts = dict.fromkeys(("problems", "converged", "unknown", "lies"), 0)
    worst, number = 0.0, seed
    lying: list[str] = []
    while counts["problems"] < n_problems:
        number += 1
        case = draw(number, np.float32 if number % 3 == 0 else np.float64)
        if len(case.dictionary) > MOST_ATOMS or case.family == "signals 1e-20 to 1e20":
            continue
        gaps = _try_case(kind, case, counts, lying)
        worst = max(worst, gaps)
        if counts["problems"] % 400 == 0:
            report(f"{kind}, kernel {kernel}: {counts['problems']:,} problems, {counts['lies']} lies, gap {worst:.1e}")
    note = (
        f"{counts['converged'] / counts['problems']:.2%} converged; {counts['unknown']:,} without an oracle; "
        f"largest relative gap in float64 {worst:.0e}"
    )
    return Outcome(f"{kind}, kernel {kernel}", counts["problems"], counts["lies"], note, lying[:20])


def _try_case(kind: str, case: Case, counts: dict[str, int], lying: list[str]) -> float:
    make, solve_exactly, solvers = KINDS[kind]
    problem = make(case, np.random.default_rng(case.seed))
    solver, tol = solvers[case.seed % len(solvers)], TOLERANCES[case.seed // 7 % 3]
    case = problem.case
    x, D, lam1 = (torch.from_numpy(part) for part in (case.x, case.dictionary, case.lam1))
    solution = torchscn.solve(x, D, lam1, case.lam2, solver=solver, tol=tol, constraint=problem.constraint)
    codes, converged = solution.codes.double().numpy(), solution.converged.numpy()
    matrix, targets = problem.stacked()
    exact = np.stack([_best(matrix, target, problem, solve_exactly) for target in targets])
    scale = (targets**2).sum(-1) / 2 + problem.value(exact)
    scale = np.where(scale > 0, scale, 1.0)
    gaps = (problem.value(codes) - problem.value(exact)) / scale
    eps = float(np.finfo(case.x.dtype).eps)
    # Rounding of the Gram matrix changes the objective of large codes.
    norms = np.linalg.norm(matrix, axis=0)
    parts = np.abs(exact * norms).sum(-1) ** 2 / scale
    least = LARGEST_GAP if case.x.dtype == np.float64 else 0.0
    allowed = 10 * tol**2 + least + ROUNDING * eps * (1 + parts)
    near = _is_near(codes, exact, tol) & _is_near(codes * norms, exact * norms, tol)
    wrong = converged & ~(((gaps <= allowed) | near) & _is_allowed(problem, codes, eps))
    counts["problems"] += N_SIGNALS
    counts["converged"] += int(converged.sum())
    counts["lies"] += int(wrong.sum())
    counts["unknown"] += int((gaps < -allowed).sum())
    if wrong.any():
        lying.append(f"{kind}, {solver}, tol {tol:g}, {case}: gap {gaps[wrong].max():.1e}")
    exact_ones = converged & (tol < LARGEST_GAP) & (case.x.dtype == np.float64)
    return float(gaps[exact_ones].max(initial=0.0))


def _is_near(values: Array, exact: Array, tol: float) -> Any:
    return np.linalg.norm(values - exact, axis=-1) <= 10 * tol * np.linalg.norm(exact, axis=-1)


def _best(matrix: Array, target: Array, problem: Constrained, solve_exactly: Callable[..., Array]) -> Array:
    """Codes of the other program."""
    with np.errstate(all="ignore"):
        return np.asarray(solve_exactly(matrix, target, problem))


def _is_allowed(problem: Constrained, codes: Array, eps: float) -> Any:
    inside = (codes >= problem.lower).all(-1) & (codes <= problem.upper).all(-1)
    if problem.total is None:
        return inside
    return inside & (np.abs(codes.sum(-1) - problem.total) <= ROUNDING * eps * problem.total)
