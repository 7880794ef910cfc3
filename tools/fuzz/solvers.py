"""Every solver and kernel on random problems: does ``converged`` keep its promise?"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

import torchscn
from tools.fuzz.outcome import Outcome
from tools.fuzz.problems import N_SIGNALS, Array, Case, Exact, draw, solve_exactly
from torchscn.kernels import available_kernels

__all__ = ["forced_kernel", "run"]

ROUNDING = 100.0  # of the promise: multiples of eps times the condition number
LARGE_EVERY = 320  # cases, among them one with a thousand atoms
TOLERANCES = (1e-2, 1e-4, 1e-6)
COMPILED = ("auto", "coordinate", "active_set")  # solvers that run in every kernel; FISTA is plain torch


@dataclass
class Tally:
    """What happened to the problems of one solver."""

    problems: int = 0
    unjudged: int = 0  # the other program found no optimum
    converged: int = 0
    lies: int = 0
    gradients: int = 0
    wrong_gradients: int = 0
    lying: list[str] = field(default_factory=list)
    not_converged: Counter[str] = field(default_factory=Counter)


def run(n_problems: int, seed: int, report: Callable[[str], None]) -> list[Outcome]:
    """Fuzz every solver on every kernel with about ``n_problems`` problems each."""
    outcomes = []
    for solver, kernel in _combinations():
        share = (
            n_problems if kernel == available_kernels()[-1] or solver == "fista" else max(n_problems // 10, N_SIGNALS)
        )
        tally = Tally()
        with forced_kernel(kernel):
            for number in range(-(-share // N_SIGNALS)):
                _try_case(solver, seed + number, tally)
                if number % 50 == 0:
                    report(f"{solver}, kernel {kernel}: {tally.problems:,} of {share:,} problems, {tally.lies} lies")
        outcomes.append(_outcome(solver, kernel, tally))
    return outcomes


def _combinations() -> Iterator[tuple[str, str]]:
    for solver in COMPILED:
        for kernel in reversed(available_kernels()):
            yield solver, kernel
    yield "fista", "torch"


@contextmanager
def forced_kernel(name: str) -> Iterator[None]:
    before = os.environ.get("TORCHSCN_KERNEL")
    os.environ["TORCHSCN_KERNEL"] = name
    try:
        yield
    finally:
        os.environ.pop("TORCHSCN_KERNEL") if before is None else os.environ.update(TORCHSCN_KERNEL=before)


def _try_case(solver: str, seed: int, tally: Tally) -> None:
    dtype = np.float32 if seed % 2 else np.float64
    case = draw(seed, dtype, large=seed % LARGE_EVERY == LARGE_EVERY // 2)
    exact = solve_exactly(case)
    tol = TOLERANCES[seed % 3]
    x, D, lam1 = (torch.from_numpy(part) for part in (case.x, case.dictionary, case.lam1))
    solution = torchscn.solve(x, D, lam1, case.lam2, solver=solver, tol=tol)
    kept = keeps_promise(case, exact, solution.codes.double().numpy(), tol)
    converged = solution.converged.numpy()
    tally.problems += len(case.x)
    tally.unjudged += int((~exact.known).sum())
    tally.converged += int(converged.sum())
    lies = converged & exact.known & ~kept
    tally.lies += int(lies.sum())
    tally.not_converged[case.family] += int((~converged).sum())
    if lies.any():
        tally.lying.append(f"{case}, tol {tol:g}")
    _try_gradient(solver, case, exact, tol, tally)


def keeps_promise(case: Case, exact: Exact, codes: Array, tol: float) -> Array:
    """For every signal, whether codes that are called converged are as accurate as ``docs/trust.md`` says."""
    eps = float(np.finfo(case.x.dtype).eps)
    if exact.condition > 0.01 / eps / len(case.dictionary):
        # Rounding of the Gram matrix changes the objective of large codes.
        parts = ((exact.codes * exact.norms) ** 2).sum(-1) / np.where(exact.scale > 0, exact.scale, 1.0)
        close: Array = _gap(case, exact, codes) <= 10 * tol**2 + ROUNDING * eps * (1 + parts)
        return close
    # Rounding of the correlations and penalties themselves, which no solver sees.
    with np.errstate(over="ignore"):
        data = (
            np.linalg.norm(case.x.astype(np.float64), axis=-1)
            + np.abs(case.lam1.astype(np.float64) / exact.norms).max()
        )
    smallest = 1 / exact.condition
    parts, error = exact.codes * exact.norms, (codes - exact.codes) * exact.norms
    allowed = (10 * tol + ROUNDING * eps * exact.condition) * np.linalg.norm(parts, axis=-1)
    in_parts = np.linalg.norm(error, axis=-1) <= allowed + ROUNDING * eps * data / smallest
    allowed = (10 * tol + ROUNDING * eps * exact.code_condition) * np.linalg.norm(exact.codes, axis=-1)
    slack = ROUNDING * eps * data * exact.condition / exact.norms.min()
    in_codes = np.linalg.norm(codes - exact.codes, axis=-1) <= allowed + slack
    sane = np.isfinite(codes).all(-1) & (codes >= 0).all(-1)
    kept: Array = np.asarray(sane & in_parts & in_codes & _is_zero(case, exact, codes))
    return kept


def _gap(case: Case, exact: Exact, codes: Array) -> Array:
    """Relative gap of the objective, in units of the objective of zero codes."""
    sizes = np.sqrt(np.where(exact.scale > 0, 2 * exact.scale, 1.0))[:, None]
    x, codes = case.x.astype(np.float64) / sizes, codes / sizes
    lam1, D = case.lam1.astype(np.float64) / sizes, case.dictionary.astype(np.float64)

    def value(a: Array) -> Array:
        total: Array = ((x - a @ D) ** 2).sum(-1) / 2 + (lam1 * a).sum(-1) + case.lam2 * (a**2).sum(-1) / 2
        return total

    gap: Array = (value(codes) - value(exact.codes / sizes)) / 0.5
    return gap


def _is_zero(case: Case, exact: Exact, codes: Array) -> Array:
    """Where the optimum is zero beyond rounding, codes must be zero."""
    x, D = case.x.astype(np.float64), case.dictionary.astype(np.float64)
    terms = np.abs(x) @ np.abs(D.T) + case.lam1
    margin = case.lam1 - x @ D.T
    surely = (margin > 10 * len(D.T) * np.finfo(case.x.dtype).eps * terms).all(-1)
    right: Array = ~surely | (codes == 0).all(-1)
    return right


def _try_gradient(solver: str, case: Case, exact: Exact, tol: float, tally: Tally) -> None:
    """The gradient where supports have a margin, for a random incoming one, against the formula in float64."""
    if exact.condition > 1e3 or case.family.startswith("signals") or not exact.known.all():
        return
    x, D, lam1 = (torch.from_numpy(part).requires_grad_() for part in (case.x, case.dictionary, case.lam1))
    incoming = torch.from_numpy(np.random.default_rng(case.seed).standard_normal(exact.codes.shape)).to(x.dtype)
    codes = torchscn.sparse_code(x, D, lam1, case.lam2, solver=solver, tol=tol)
    if not np.array_equal(codes.detach().numpy() > 0, exact.codes > 0):
        return  # without a margin, or too loose a tolerance to tell
    codes.backward(incoming)
    expected, terms = _exact_gradient(case, exact, incoming.double().numpy())
    tally.gradients += 1
    assert D.grad is not None
    found = D.grad.double().numpy() * exact.norms[:, None]
    wanted = expected * exact.norms[:, None]
    allowed = (50 * tol + ROUNDING * np.finfo(case.x.dtype).eps * exact.condition) * np.linalg.norm(
        terms * exact.norms[:, None]
    )
    if np.linalg.norm(found - wanted) > allowed + 1e-12:
        tally.wrong_gradients += 1
        tally.lying.append(f"gradient of {case}, tol {tol:g}")


def _exact_gradient(case: Case, exact: Exact, incoming: Array) -> tuple[Array, Array]:
    """The gradient of the dictionary, and the size of the terms it is a difference of."""
    D, x = case.dictionary.astype(np.float64), case.x.astype(np.float64)
    gram = D @ D.T + case.lam2 * np.eye(len(D))
    gamma = np.zeros_like(exact.codes)
    for i, code in enumerate(exact.codes):
        support = code > 0
        gamma[i, support] = np.linalg.solve(gram[np.ix_(support, support)], incoming[i, support])
    grad = gamma.T @ x - (gamma.T @ exact.codes + exact.codes.T @ gamma) @ D
    sizes, codes = np.abs(gamma), np.abs(exact.codes)
    terms = sizes.T @ np.abs(x) + (sizes.T @ codes + codes.T @ sizes) @ np.abs(D)
    return grad, terms


def _outcome(solver: str, kernel: str, tally: Tally) -> Outcome:
    missing = ", ".join(f"{name} {count}" for name, count in tally.not_converged.most_common(3) if count)
    note = (
        f"{tally.converged / tally.problems:.2%} converged{f' (not: {missing})' if missing else ''}; "
        f"{tally.gradients:,} gradients, {tally.wrong_gradients} wrong; {tally.unjudged:,} without an oracle"
    )
    return Outcome(
        f"{solver}, kernel {kernel}", tally.problems, tally.lies + tally.wrong_gradients, note, tally.lying[:20]
    )
