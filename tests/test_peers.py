"""Problems of the kinds that other packages test their solvers of the same problem with."""

import numpy as np
import pytest
import scipy.optimize
import torch
from sklearn.linear_model import enet_path

import torchscn


def regression(n_samples, n_features):
    """Few samples, many features, ten of which matter."""
    random = np.random.default_rng(0)
    weights = np.where(np.arange(n_features) < 10, random.standard_normal(n_features), 0)
    X = random.standard_normal((n_samples, n_features))
    return X, X @ weights


@pytest.mark.filterwarnings("ignore:Objective did not converge")  # theirs, where ours is better
@pytest.mark.parametrize("n_features", [50, 200])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.5])
@pytest.mark.parametrize("positive", [True, False])
def test_paths_of_scikit_learn(n_features, l1_ratio, positive):
    """A hundred penalties of a path as a hundred signals, as far as they share lam2."""
    X, y = regression(50, n_features)
    alphas, coefs, _ = enet_path(X, y, l1_ratio=l1_ratio, positive=positive, tol=1e-10, max_iter=5_000)
    D, x = torch.from_numpy(X.T.copy()), torch.from_numpy(y)
    lam1 = torch.from_numpy(50 * alphas * l1_ratio)[:, None]
    lam2 = torch.from_numpy(50 * alphas * (1 - l1_ratio))
    constraint = "non_negative" if positive else "signed"
    if l1_ratio == 1:
        solution = torchscn.solve(x.expand(100, -1), D, lam1, constraint=constraint)
        codes, converged = solution.codes, solution.converged
    else:
        solutions = [torchscn.solve(x, D, *own, constraint=constraint) for own in zip(lam1[:, 0], lam2, strict=True)]
        codes = torch.stack([solution.codes for solution in solutions])
        converged = torch.stack([solution.converged for solution in solutions])
    expected = torch.from_numpy(coefs.T.copy())
    ours = torchscn.objective(x, D, codes, lam1) + lam2 * codes.square().sum(-1) / 2
    theirs = torchscn.objective(x, D, expected, lam1) + lam2 * expected.square().sum(-1) / 2
    assert converged.all()
    assert (ours <= theirs + 1e-9 * x.square().sum() / 2).all()


def test_a_line_with_negative_slope():
    x, D = torch.tensor([1.0, 0.0, -1.0]), torch.tensor([[-1.0, 0.0, 1.0]])
    assert torchscn.sparse_code(x, D, 0.3) == 0
    assert torchscn.sparse_code(x, D, 0.3, constraint="signed").item() == pytest.approx(-0.85)


@pytest.mark.parametrize(
    ("n", "n_atoms", "n_features", "noise"), [(32, 16, 12, 0.0), (32, 16, 12, 0.01), (16, 8, 6, 0.1), (64, 10, 8, 0.0)]
)
@pytest.mark.parametrize("function", ["nnls", "sparse_code"])
def test_batches_of_overcomplete(n, n_atoms, n_features, noise, function):
    """A dictionary for every signal, with more atoms than features."""
    generator = torch.Generator().manual_seed(n + n_atoms)
    D = torch.randn(n, n_atoms, n_features, generator=generator, dtype=torch.float64)
    codes = torch.rand(n, n_atoms, generator=generator, dtype=torch.float64)
    codes = codes * (torch.rand(codes.shape, generator=generator) > 0.5)
    x = (codes[:, None] @ D).squeeze(1) + noise * torch.randn(n, n_features, generator=generator, dtype=torch.float64)
    found = torchscn.nnls(D.mT, x)[0] if function == "nnls" else torchscn.sparse_code(x, D)
    misfits = (x - (found[:, None] @ D).squeeze(1)).norm(dim=-1)
    theirs = [scipy.optimize.nnls(atoms.T.numpy(), row.numpy())[1] for atoms, row in zip(D, x, strict=True)]
    assert found.min() >= 0
    assert (misfits <= torch.tensor(theirs, dtype=torch.float64) + 1e-7 * x.norm(dim=-1)).all()
