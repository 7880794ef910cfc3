"""Other people's solvers of the same problem, with their conventions converted to ours (atoms are rows)."""

import numpy as np
import scipy.optimize
import spams
import torch
from sklearn.linear_model import ElasticNet
from torch import Tensor


def nnls(x: Tensor, dictionary: Tensor, lam1: Tensor, lam2: float) -> Tensor:
    """Exact codes of every row of ``x`` by scipy, one ``lam1`` per atom."""
    D, penalties = dictionary.numpy().T, lam1.numpy()
    return torch.from_numpy(np.stack([_nnls_row(row, D, penalties, lam2) for row in x.numpy()]))


def _nnls_row(x: np.ndarray, D: np.ndarray, lam1: np.ndarray, lam2: float) -> np.ndarray:
    """Penalties as extra rows of a least-squares problem; without lam2, lam1 goes through the Cholesky factor."""
    n_atoms = D.shape[1]
    if lam2 > 0:
        ridge = np.sqrt(lam2)
        return scipy.optimize.nnls(np.vstack([D, ridge * np.eye(n_atoms)]), np.concatenate([x, -lam1 / ridge]))[0]
    if not lam1.any():
        return scipy.optimize.nnls(D, x)[0]
    gram = D.T @ D
    upper = scipy.linalg.cholesky(gram)
    return scipy.optimize.nnls(upper, upper @ np.linalg.solve(gram, D.T @ x - lam1))[0]


def spams_lasso(x: Tensor, dictionary: Tensor, lam1: float, lam2: float) -> Tensor:
    """Codes by SPAMS (LARS), one number for ``lam1``."""
    signals, atoms = np.asfortranarray(x.numpy().T), np.asfortranarray(dictionary.numpy().T)
    codes = spams.lasso(signals, D=atoms, lambda1=lam1, lambda2=lam2, mode=2, pos=True)
    return torch.from_numpy(codes.toarray().T.copy())


def elastic_net(x: Tensor, dictionary: Tensor, lam1: float, lam2: float) -> Tensor:
    """Codes by scikit-learn, whose data term is divided by the number of features."""
    D = dictionary.numpy().T
    total = lam1 + lam2
    model = ElasticNet(
        alpha=total / len(D), l1_ratio=lam1 / total, fit_intercept=False, positive=True, tol=1e-13, max_iter=100_000
    )
    return torch.from_numpy(model.fit(D, x.numpy().T).coef_.reshape(len(x), -1))


def by_bounds(x: Tensor, dictionary: Tensor, lam2: float, lower: Tensor, upper: Tensor) -> Tensor:
    """Codes between bounds, by scipy."""
    n_atoms = len(dictionary)
    columns = np.vstack([dictionary.numpy().T, np.sqrt(lam2) * np.eye(n_atoms)])
    codes = [
        scipy.optimize.lsq_linear(
            columns, np.concatenate([row, np.zeros(n_atoms)]), (lower.numpy(), upper.numpy()), method="bvls", tol=1e-15
        ).x
        for row in x.numpy()
    ]
    return torch.from_numpy(np.stack(codes))


def signed_lasso(x: Tensor, dictionary: Tensor, lam1: float, lam2: float) -> Tensor:
    """Signed codes by scikit-learn."""
    D, total = dictionary.numpy().T, lam1 + lam2
    model = ElasticNet(alpha=total / len(D), l1_ratio=lam1 / total, fit_intercept=False, tol=1e-14, max_iter=100_000)
    return torch.from_numpy(model.fit(D, x.numpy().T).coef_.reshape(len(x), -1))


def by_sum(x: Tensor, dictionary: Tensor, total: float) -> Tensor:
    """Non-negative codes with a sum: the point of a polytope nearest to the origin, by scipy's ``nnls``."""
    codes = []
    for row in x.numpy():
        corners = total * dictionary.numpy().T - row[:, None]
        size = np.abs(corners).max()
        stacked = np.vstack([corners / size, np.ones(len(dictionary))])
        weights, _ = scipy.optimize.nnls(stacked, np.eye(len(stacked))[-1])
        codes.append(total * weights / weights.sum())
    return torch.from_numpy(np.stack(codes))
