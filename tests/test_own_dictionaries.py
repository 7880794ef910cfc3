"""A dictionary or a Gram matrix for every signal: the same answers as one at a time, and their derivatives."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import torch
from oracles import nnls
from torch.testing import assert_close

import torchscn
from torchscn.constraints import OnSupport
from torchscn.kernels import SweepRule, available_kernels, sweeps_for
from torchscn.problem import Problem

RULE = SweepRule(tol=1e-10, max_iter=10_000)


@pytest.fixture(params=["torch", available_kernels()[-1]])
def kernel(request, monkeypatch):
    monkeypatch.setenv("TORCHSCN_KERNEL", request.param)
    return request.param


def problems(n_problems: int, n_atoms: int, n_features: int, dtype=torch.float64, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    atoms = torch.randn(n_problems, n_atoms, n_features, generator=generator, dtype=torch.float64)
    x = torch.randn(n_problems, n_features, generator=generator, dtype=torch.float64)
    return x.to(dtype), atoms.to(dtype)


@pytest.mark.parametrize(("n_atoms", "n_features"), [(1, 3), (5, 10), (12, 4), (40, 60)])
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_equals_one_at_a_time(kernel, n_atoms, n_features, dtype, tol):
    x, atoms = problems(37, n_atoms, n_features, dtype)
    solution = torchscn.solve(x, atoms, lam1=0.1, lam2=0.01)
    assert solution.converged.all()
    assert solution.n_iter >= 1
    for i in range(0, 37, 6):
        penalties = torch.full((n_atoms,), 0.1, dtype=torch.float64)
        wanted = nnls(x[i : i + 1].double(), atoms[i].double(), penalties, 0.01)[0]
        assert_close(solution.codes[i].double(), wanted, atol=tol, rtol=tol)


def test_several_signals_for_each_dictionary(kernel):
    x, atoms = problems(6, 5, 8)
    many = torch.randn(6, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = torchscn.sparse_code(many, atoms, lam1=0.1)
    assert found.shape == (6, 4, 5)
    for i in range(6):
        assert_close(found[i], torchscn.sparse_code(many[i], atoms[i], lam1=0.1, tol=1e-12))
    assert torchscn.sparse_code(x[0], atoms).shape == (6, 5)  # one signal for all
    assert torchscn.sparse_code(many[None], atoms).shape == (1, 6, 4, 5)


def test_gram_matrices(kernel):
    x, atoms = problems(9, 6, 8)
    rhs, gram = (atoms @ x[..., None]).squeeze(-1), atoms @ atoms.mT
    assert_close(torchscn.nonneg_qp(rhs, gram), torchscn.sparse_code(x, atoms))
    assert torchscn.nonneg_qp(rhs[:, None].expand(9, 3, 6), gram).shape == (9, 3, 6)


def test_dependent_and_empty_atoms(kernel):
    x, atoms = problems(20, 6, 3)
    atoms[:, 1], atoms[:, 2] = atoms[:, 0], 0
    solution = torchscn.solve(x, atoms)
    assert solution.converged.all()
    assert (solution.codes[:, 2] == 0).all()
    misfit = (x - (solution.codes[:, None, :] @ atoms).squeeze(1)).norm(dim=-1)
    _, least = torchscn.nnls(atoms.mT, x)
    assert_close(misfit, least, atol=1e-6, rtol=1e-6)


def test_on_a_support(kernel):
    x, atoms = problems(15, 7, 9)
    rhs, gram = (atoms @ x[..., None]).squeeze(-1), atoms @ atoms.mT
    mask = (torch.rand(15, 7, generator=torch.Generator().manual_seed(2)) > 0.4).double()
    problem = Problem(rhs, gram, constraint=OnSupport(mask))
    result = sweeps_for(problem)(problem, RULE)
    assert result.converged.all()
    assert (result.codes[mask == 0] == 0).all()
    assert_close(problem.gradient(result.codes) * mask, torch.zeros_like(mask), atol=1e-10, rtol=0)


def test_bad_numbers_stay_with_their_problem(kernel):
    x, atoms = problems(5, 4, 6)
    clean = torchscn.sparse_code(x, atoms)
    x[1, 0], atoms[3, 0, 0] = torch.nan, torch.inf
    solution = torchscn.solve(x, atoms)
    assert solution.converged.tolist() == [True, False, True, False, True]
    assert solution.codes.isnan().all(-1).tolist() == [False, True, False, True, False]
    assert_close(solution.codes[::2], clean[::2])


def test_too_few_steps(kernel):
    x, atoms = problems(30, 20, 30)
    solution = torchscn.solve(x, atoms, max_iter=2)
    assert not solution.converged.all()
    assert (solution.codes >= 0).all()
    assert torchscn.solve(x, atoms, max_iter=200).converged.all()


def test_indefinite_matrices_are_refused(kernel):
    gram = torch.eye(3, dtype=torch.float64).repeat(4, 1, 1)
    gram[2, 0, 1] = gram[2, 1, 0] = 3
    with pytest.raises(ValueError, match="not positive semi-definite"):
        torchscn.nonneg_qp(torch.ones(4, 3, dtype=torch.float64), gram)


def test_derivatives(kernel):
    x, atoms = problems(3, 4, 6)
    lam1, lam2 = torch.tensor([0.1, 0.2, 0.05, 0.1], dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)
    inputs = tuple(tensor.requires_grad_() for tensor in (x, atoms, lam1, lam2))
    assert torch.autograd.gradcheck(torchscn.sparse_code, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(torchscn.sparse_code, inputs)


def test_vmap_over_dictionaries(kernel):
    x, atoms = problems(5, 4, 6)

    def code(signal, dictionary):
        return torchscn.sparse_code(signal, dictionary, lam1=0.1)

    together = code(x, atoms)
    assert_close(torch.func.vmap(code)(x, atoms), together)
    one_by_one = torch.stack([torchscn.sparse_code(x, one, lam1=0.1, solver="active_set") for one in atoms])
    assert_close(torch.func.vmap(code, in_dims=(None, 0))(x, atoms), one_by_one)
    by_vmap = torch.func.vmap(torch.func.grad(lambda s, d: code(s, d).sum(), argnums=1))(x, atoms)
    (wanted,) = torch.autograd.grad(code(x, atoms.requires_grad_()).sum(), atoms)
    assert_close(by_vmap, wanted)


def test_compiles():
    x, atoms = problems(5, 4, 6)
    compiled = torch.compile(lambda s, d: torchscn.sparse_code(s, d, lam1=0.1), fullgraph=True, backend="aot_eager")
    assert_close(compiled(x, atoms), torchscn.sparse_code(x, atoms, lam1=0.1))


def test_empty_batch(kernel):
    assert torchscn.sparse_code(torch.ones(0, 6), torch.ones(0, 4, 6)).shape == (0, 4)


def test_wrong_input():
    x, atoms = problems(5, 4, 6)
    with pytest.raises(ValueError, match="do not go together"):
        torchscn.sparse_code(x[:3], atoms)
    with pytest.raises(ValueError, match="one dictionary for all"):
        torchscn.sparse_code(x, atoms, solver="fista")
    with pytest.raises(ValueError, match="did you pass the transpose"):
        torchscn.sparse_code(torch.ones(5, 4), atoms.float())
    problem = Problem(torch.ones(5, 4), torch.eye(4).repeat(5, 1, 1))
    assert replace(problem).take(torch.tensor([1, 3])).gram.shape == (2, 4, 4)


def exact_objective(gram: np.ndarray, rhs: np.ndarray, rounding: float) -> float:
    """The least value of ``a G a' / 2 - rhs a'`` over ``a >= 0``, by scipy on a factor of G."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > rounding * values.max()
    factor = vectors[:, kept] * np.sqrt(values[kept])
    codes = scipy.optimize.nnls(factor.T, (vectors[:, kept] / np.sqrt(values[kept])).T @ rhs, maxiter=1000)[0]
    return codes @ gram @ codes / 2 - rhs @ codes


CHANGES = {
    "random": lambda atoms: atoms,
    "positive": lambda atoms: atoms.abs() + 1,
    "duplicate atoms": lambda atoms: torch.cat([atoms[:, :1], atoms[:, :-1]], dim=1),
    "multiples of one atom": lambda atoms: atoms[:, :1] * torch.linspace(0.5, 2, atoms.shape[1])[:, None],
    "an empty atom": lambda atoms: atoms * (torch.arange(atoms.shape[1]) != 1)[:, None],
    "nearly the same atoms": lambda atoms: atoms[:, :1] + 1e-6 * atoms,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize(("n_atoms", "n_features", "lam1", "lam2"), [(4, 1, 0.1, 0), (9, 6, 0, 0), (6, 12, 0.1, 0.1)])
def test_objective_is_the_least_there_is(kernel, dtype, kind, n_atoms, n_features, lam1, lam2):
    x, atoms = problems(8, n_atoms, n_features)
    atoms = CHANGES[kind](atoms)
    gram = (atoms @ atoms.mT + lam2 * torch.eye(n_atoms, dtype=torch.float64)).to(dtype)
    rhs = ((atoms @ x[..., None]).squeeze(-1) - lam1).to(dtype)
    problem = Problem(rhs, gram)
    result = sweeps_for(problem)(problem, RULE)
    assert result.converged.all()
    for codes, one, side in zip(
        result.codes.double().numpy(), gram.double().numpy(), rhs.double().numpy(), strict=True
    ):
        least = exact_objective(one, side, 50 * torch.finfo(dtype).eps)
        parts = codes @ (np.diag(one) * codes)
        found = codes @ one @ codes / 2 - side @ codes
        assert found - least <= 100 * torch.finfo(dtype).eps * (abs(least) + parts) + 1e-12 * abs(least)


def test_wide_dictionaries_without_penalties(kernel):
    x, atoms = problems(800, 12, 6)
    solution = torchscn.solve(x.abs(), atoms)
    assert solution.converged.all()
    assert solution.residual.max() <= 1e-9 * solution.codes.max()


def test_tiny_atoms_do_not_hide_the_others(kernel):
    atoms = torch.eye(3)
    atoms[2] *= 1e-6
    x = torch.tensor([[0.15, 0.9, 0.0]] * 2)
    found = torchscn.sparse_code(x, atoms.expand(2, 3, 3), lam1=0.1)
    assert_close(found, torch.tensor([[0.05, 0.8, 0.0]] * 2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("max_iter", [1, 2, 3, 5])
def test_stopped_codes_are_not_called_converged(kernel, max_iter):
    generator = torch.Generator().manual_seed(3)
    atoms = torch.rand(500, 8, 10, generator=generator, dtype=torch.float64)
    x = torch.randn(500, 10, generator=generator, dtype=torch.float64) + 0.3
    stopped, exact = torchscn.solve(x, atoms, max_iter=max_iter), torchscn.solve(x, atoms)
    done = stopped.converged
    assert 0 < done.sum() < 500
    assert_close(stopped.codes[done], exact.codes[done], atol=1e-9, rtol=1e-9)


def test_more_atoms_than_steps_by_default(kernel):
    n = 1100 if kernel != "torch" else 40
    solution = torchscn.solve(torch.ones(2, n), torch.eye(n).expand(2, n, n))
    assert solution.converged.all()
    assert (solution.codes == 1).all()


def test_atoms_lost_to_underflow_are_scaled(kernel):
    atoms = 1e-30 * torch.eye(2)
    assert_close(torchscn.sparse_code(torch.ones(2, 2), atoms.expand(2, 2, 2)), torch.full((2, 2), 1e30))


def test_other_transforms_over_own_dictionaries():
    x, atoms = problems(5, 4, 6)
    many = torch.stack([x, 2 * x, x + 1])

    def code(signal, dictionary, lam1=0.1):
        return torchscn.sparse_code(signal, dictionary, lam1)

    one_by_one = torch.stack([code(one, atoms) for one in many])
    assert_close(torch.func.vmap(lambda one: code(one, atoms))(many), one_by_one)
    penalties = torch.tensor([0.1, 0.2], dtype=torch.float64)
    by_penalty = torch.func.vmap(lambda lam1: code(x, atoms, lam1))(penalties)
    assert_close(by_penalty, torch.stack([code(x, atoms, float(lam1)) for lam1 in penalties]))
    nested = torch.func.vmap(lambda one: torch.func.vmap(lambda d: code(one, d))(atoms))(x)
    assert_close(nested, torch.stack([code(one.expand(5, 6), atoms) for one in x]))
    jacobian = torch.func.jacrev(lambda d: code(x, d))(atoms)
    assert_close(jacobian, torch.autograd.functional.jacobian(lambda d: code(x, d), atoms))
    by_fista = torch.func.vmap(lambda s, d: torchscn.sparse_code(s, d, 0.1, solver="fista", tol=1e-10))(x, atoms)
    assert_close(by_fista, code(x, atoms), atol=1e-7, rtol=1e-7)
