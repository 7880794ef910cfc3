"""Random problems, named for what is hard about them, and their exact solutions by other people's program."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.optimize

__all__ = ["FAMILIES", "Case", "Exact", "draw", "solve_exactly"]

N_SIGNALS = 8  # of every case

Array = npt.NDArray[Any]
Draw = Callable[[np.random.Generator, int, int], Array]


@dataclass(frozen=True)
class Case:
    """Signals over one dictionary, in the number type that will be used, and the penalties."""

    family: str
    seed: int
    x: Array  # (n_signals, n_features)
    dictionary: Array  # (n_atoms, n_features)
    lam1: Array  # (n_atoms,)
    lam2: float

    def __str__(self) -> str:
        n_atoms, n_features = self.dictionary.shape
        return f"{self.family}, seed {self.seed}: {n_features} x {n_atoms}, {self.x.dtype}, lam2 {self.lam2:g}"


def _random(random: np.random.Generator, n_atoms: int, n_features: int) -> Array:
    atoms: Array = random.standard_normal((n_atoms, n_features)) / np.sqrt(n_features)
    return atoms


def _correlated(random: np.random.Generator, n_atoms: int, n_features: int) -> Array:
    return 0.3 * _random(random, n_atoms, n_features) + _random(random, 1, n_features)


def _positive(random: np.random.Generator, n_atoms: int, n_features: int) -> Array:
    return np.abs(_random(random, n_atoms, n_features))


def _duplicates(random: np.random.Generator, n_atoms: int, n_features: int) -> Array:
    """Every third atom is there twice."""
    D = _random(random, n_atoms, n_features)
    D[1::3] = D[::3][: len(D[1::3])]
    return D


def _near_duplicates(random: np.random.Generator, n_atoms: int, n_features: int) -> Array:
    """Every third atom is there twice, turned by an angle of 1e-6."""
    D = _duplicates(random, n_atoms, n_features)
    D[1::3] += 1e-6 * _random(random, len(D[1::3]), n_features)
    return D


def _deficient(random: np.random.Generator, n_atoms: int, n_features: int) -> Array:
    rank = max(1, min(n_atoms, n_features) // 2)
    return _random(random, n_atoms, rank) @ _random(random, rank, n_features)


def _uneven(random: np.random.Generator, n_atoms: int, n_features: int) -> Array:
    """Norms between 1e-8 and 1e8."""
    return _random(random, n_atoms, n_features) * 10.0 ** random.uniform(-8, 8, (n_atoms, 1))


def _one_tiny(random: np.random.Generator, n_atoms: int, n_features: int) -> Array:
    D = _random(random, n_atoms, n_features)
    D[random.integers(n_atoms)] *= 1e-5
    return D


def _zero_atoms(random: np.random.Generator, n_atoms: int, n_features: int) -> Array:
    D = _random(random, n_atoms, n_features)
    D[random.random(n_atoms) < 0.3] = 0
    return D


def _opposite(random: np.random.Generator, n_atoms: int, n_features: int) -> Array:
    """Atoms with their negatives: without lam2 there is a cone of codes that mean nothing."""
    D = _random(random, n_atoms, n_features)
    D[1::2] = -D[::2][: len(D[1::2])]
    return D


def _nearly_opposite(random: np.random.Generator, n_atoms: int, n_features: int) -> Array:
    """Differences of large codes stand for small things."""
    D = _opposite(random, n_atoms, n_features)
    D[1::2] += 10.0 ** random.uniform(-4, -1) * _random(random, len(D[1::2]), n_features)
    return D


FAMILIES: dict[str, Draw] = {
    "random": _random,
    "correlated": _correlated,
    "positive": _positive,
    "duplicates": _duplicates,
    "near duplicates": _near_duplicates,
    "rank-deficient": _deficient,
    "norms 1e-8 to 1e8": _uneven,
    "one tiny atom": _one_tiny,
    "zero atoms": _zero_atoms,
    "opposite atoms": _opposite,
    "nearly opposite atoms": _nearly_opposite,
    "signals 1e-20 to 1e20": _random,
    "penalty at a threshold": _random,
    "all codes zero": _random,
    "black signals": _random,
    "one atom": _random,
}


DEPENDENT = ("duplicates", "near duplicates", "rank-deficient", "zero atoms", "opposite atoms", "nearly opposite atoms")


def draw(seed: int, dtype: type, large: bool = False) -> Case:
    """The case of a seed; families take turns. Large ones have a thousand random atoms."""
    random = np.random.default_rng(seed)
    family = "random" if large else list(FAMILIES)[seed % len(FAMILIES)]
    if large:
        n_atoms, n_features = 1000, 60
    else:
        n_atoms = 1 if family == "one atom" else int(random.choice([2, 3, 5, 8, 13, 16, 24, 33, 48, 64, 100]))
        n_features = int(np.ceil(n_atoms * random.choice([0.15, 0.3, 0.5, 0.8, 1, 1.5, 2, 4])))
    D: Array = FAMILIES[family](random, n_atoms, n_features).astype(dtype)
    x = random.standard_normal((N_SIGNALS, n_features))
    if family == "signals 1e-20 to 1e20":
        x *= 10.0 ** random.uniform(-20, 20, (N_SIGNALS, 1))
    if family == "black signals":
        x[random.random(N_SIGNALS) < 0.5] = 0
    x = x.astype(dtype)
    lam2 = float(random.choice([0.0, 1e-6, 1e-3, 1e-1]))
    if family == "signals 1e-20 to 1e20":
        lam1 = np.zeros(n_atoms)
    else:
        size = float(np.median(np.abs(x @ D.T))) or 1.0
        lam1 = np.full(n_atoms, random.choice([0.0, 0.1, 1.0]) * size) * random.choice([1.0, 0.5], n_atoms)
    if family == "penalty at a threshold":
        lam1 = np.abs(x[0] @ D.T)
    if family == "all codes zero":
        lam1 = 1.5 * np.abs(x @ D.T).max(0)
    independent = family not in DEPENDENT and n_atoms <= n_features // 2
    if lam2 == 0 and not independent:
        lam1 = np.zeros(n_atoms)  # the only case that other programs solve when atoms may be dependent
    return Case(family, seed, x, D, lam1.astype(dtype), lam2)


@dataclass(frozen=True)
class Exact:
    """The optimum in float64, and what the number type of the case can show of it."""

    codes: Array  # (n_signals, n_atoms); one of many where they are not unique
    known: Array  # (n_signals,), False where the other program did not find the optimum
    norms: Array  # (n_atoms,) of the atoms with the ridge of lam2; 1 for atoms without energy
    condition: float  # of the Gram matrix scaled to unit diagonal
    code_condition: float  # of the Gram matrix
    objective: Array  # (n_signals,)
    scale: Array  # (n_signals,): half the squared norm of a signal, the objective of codes that are zero


def solve_exactly(case: Case) -> Exact:
    """Solve as stacked non-negative least squares with columns of norm 1, by scipy."""
    x, D, lam1 = (np.asarray(part, dtype=np.float64) for part in (case.x, case.dictionary, case.lam1))
    n_atoms = len(D)
    sizes = np.where(np.abs(x).max(-1) > 0, np.abs(x).max(-1), 1.0)
    norms = np.sqrt((D**2).sum(-1) + case.lam2)
    norms = np.where(norms > 0, norms, 1.0)
    columns = np.vstack([D.T, np.sqrt(case.lam2) * np.eye(n_atoms)]) / norms
    codes = np.zeros((len(x), n_atoms))
    known = np.zeros(len(x), dtype=bool)
    for i, signal in enumerate(x):
        scaled = signal / sizes[i]
        right = columns.T @ np.concatenate([scaled, np.zeros(n_atoms)]) - lam1 / sizes[i] / norms
        codes[i], known[i] = _solve_row(columns, right, scaled, lam1 / sizes[i] / norms, case.lam2, norms)
    scaled_gram = columns.T @ columns
    has_energy = np.diag(scaled_gram) > 0
    eigenvalues = np.linalg.eigvalsh(scaled_gram[np.ix_(has_energy, has_energy)]) if has_energy.any() else np.ones(1)
    gram = scaled_gram * norms * norms[:, None]
    own = np.linalg.eigvalsh(gram[np.ix_(has_energy, has_energy)]) if has_energy.any() else np.ones(1)
    codes = codes * sizes[:, None] / norms
    misfit = x - codes @ D
    with np.errstate(over="ignore", under="ignore"):
        objective = (misfit**2).sum(-1) / 2 + codes @ lam1 + case.lam2 * (codes**2).sum(-1) / 2
    return Exact(
        codes=codes,
        known=known,
        norms=norms,
        condition=float(eigenvalues[-1] / max(eigenvalues[0], 1e-300)),
        code_condition=float(own[-1] / max(own[0], own[-1] * 1e-300)),
        objective=objective,
        scale=(x**2).sum(-1) / 2,
    )


def _solve_row(
    columns: Array, right: Array, signal: Array, penalty: Array, lam2: float, norms: Array
) -> tuple[Array, bool]:
    """Codes in units of the columns, and whether they satisfy the optimality conditions."""
    n_atoms = columns.shape[1]
    if lam2 > 0:
        target = np.concatenate([signal, -penalty * norms / np.sqrt(lam2)])
        matrix = columns
    elif penalty.any():
        matrix = scipy.linalg.cholesky(columns.T @ columns)
        target = scipy.linalg.solve_triangular(matrix, right, trans=1)
    else:
        matrix, target = columns[: len(signal)], signal
    try:
        codes, _ = scipy.optimize.nnls(matrix, target, maxiter=30 * n_atoms + 100)
    except RuntimeError:
        return np.zeros(n_atoms), False
    codes = _polish(columns, right, codes)
    grad = columns.T @ (columns @ codes) - right
    violation = np.abs(np.minimum(codes, grad)).max()
    return codes, bool(violation <= 1e-11 * max(np.abs(right).max(), np.abs(codes).max(), 1e-300))


def _polish(columns: Array, right: Array, codes: Array) -> Array:
    """Solve once more on the support, with the residual of the normal form."""
    support = codes > 0
    if not support.any():
        return codes
    own = columns[:, support]
    moved = codes.copy()
    correction = np.linalg.lstsq(own.T @ own, right[support] - own.T @ (columns @ codes), rcond=1e-15)[0]
    moved[support] += correction
    return moved if (moved >= 0).all() else codes
