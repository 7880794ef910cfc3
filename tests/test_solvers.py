"""Every solver against independent ones, its own certificate, and the limits of the problem."""

import pytest
import torch
from oracles import elastic_net, nnls, spams_lasso
from problems import DICTIONARIES, bump_dictionary, duplicate_dictionary, random_dictionary, signals
from torch.testing import assert_close

import torchscn
from torchscn.problem import Problem, normal_form

SOLVERS = torchscn.list_solvers()
TIGHT = {"tol": 1e-12, "max_iter": 20_000}
SIZES = [(7, 10), (20, 30), (33, 16), (5, 3)]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", DICTIONARIES)
@pytest.mark.parametrize(("n_atoms", "n_features"), SIZES)
def test_agrees_with_nnls_per_atom(solver, kind, n_atoms, n_features):
    D = DICTIONARIES[kind](n_atoms, n_features)
    x = signals(10, n_features)
    lam1 = torch.linspace(0, 0.3, n_atoms, dtype=torch.float64)
    solution = torchscn.solve(x, D, lam1, 0.02, solver=solver, **TIGHT)
    assert_close(solution.codes, nnls(x, D, lam1, 0.02), atol=1e-6, rtol=0)
    assert solution.converged.all()
    assert solution.residual.max() < 1e-8


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", DICTIONARIES)
@pytest.mark.parametrize("oracle", [spams_lasso, elastic_net])
def test_agrees_with_spams_and_scikit_learn(solver, kind, oracle):
    D, x = DICTIONARIES[kind](24, 36), signals(12, 36)
    codes = torchscn.solve(x, D, 0.1, 0.05, solver=solver, **TIGHT).codes
    assert_close(codes, oracle(x, D, 0.1, 0.05), atol=1e-6, rtol=0)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("lam1", [0.0, 0.2])
def test_agrees_with_nnls_without_lam2(solver, lam1):
    D, x = random_dictionary(12, 30), signals(20, 30)
    codes = torchscn.sparse_code(x, D, lam1, solver=solver, **TIGHT)
    assert_close(codes, nnls(x, D, torch.full((12,), lam1, dtype=torch.float64), 0.0), atol=1e-6, rtol=0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_duplicate_atoms_without_lam2_reach_the_optimum(solver):
    D, x = duplicate_dictionary(12, 30), signals(20, 30)
    solution = torchscn.solve(x, D, 0.1, solver=solver, **TIGHT)
    exact = nnls(x, D, torch.full((12,), 0.1, dtype=torch.float64), 1e-9)
    assert solution.residual.max() < 1e-8
    assert_close(torchscn.objective(x, D, solution.codes, 0.1), torchscn.objective(x, D, exact, 0.1), atol=1e-7, rtol=0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_float32_residual_at_tight_tolerance(solver, kernel):
    D, x = random_dictionary(64, 144).float(), signals(500, 144).float()
    solution = torchscn.solve(x, D, 0.0, 1e-3, solver=solver, tol=1e-6)
    assert solution.converged.all()
    assert solution.residual.max() <= 1e-5 * (x @ D.T).abs().max()


def test_active_set_residual_is_at_rounding_level():
    D, x = DICTIONARIES["correlated"](40, 60), signals(50, 60)
    solution = torchscn.solve(x, D, 0.05, 1e-4, solver="active_set", tol=0.1)
    assert solution.residual.max() < 1e-13 * (x @ D.T).abs().max() * 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_active_set_is_exact_for_atoms_of_very_different_size(dtype):
    atoms = torch.diag(torch.tensor([1.0, 1e-4], dtype=dtype))
    codes = torchscn.solve(torch.ones(2, dtype=dtype), atoms, solver="active_set").codes
    assert_close(codes, torch.tensor([1.0, 1e4], dtype=dtype), rtol=1e-5, atol=0)
    D, x = random_dictionary(64, 100).to(dtype), signals(30, 100).to(dtype)
    D[::2] *= 1e-3
    solution = torchscn.solve(x, D, solver="active_set")
    expected = nnls(x.double(), D.double(), torch.zeros(64, dtype=torch.float64), 0.0)
    assert solution.converged.all()
    assert (solution.codes - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("solver", SOLVERS)
def test_start_that_is_not_finite_is_no_start(solver, kernel):
    solution = torchscn.solve(torch.ones(2), torch.eye(2), solver=solver, init=torch.tensor([torch.nan, torch.inf]))
    assert_close(solution.codes, torch.ones(2))


def test_huge_max_iter(kernel):
    assert_close(torchscn.sparse_code(torch.ones(2), torch.eye(2), solver="coordinate", max_iter=10**12), torch.ones(2))


def test_active_set_out_of_rounds_says_so():
    D, x = DICTIONARIES["correlated"](40, 60), signals(50, 60)
    zero = torch.zeros(50, 40, dtype=torch.float64)
    assert not torchscn.solve(x, D, 0.01, 1e-4, solver="active_set", max_iter=1, init=zero).converged.all()


@pytest.mark.parametrize("solver", ["coordinate", "fista", "auto"])
def test_running_into_the_cap_is_reported(solver):
    D, x = DICTIONARIES["correlated"](40, 60), signals(50, 60)
    solution = torchscn.solve(x, D, solver=solver, lam2=1e-6, tol=1e-12, max_iter=3)
    assert solution.n_iter == 3
    assert (~solution.converged).float().mean() > 0.9
    assert (solution.residual[solution.converged] < 1e-9).all()


def test_auto_finishes_ill_conditioned_problems_exactly():
    D, x = bump_dictionary(20, 60), signals(50, 60).cumsum(-1)
    capped = torchscn.solve(x, D, lam2=1e-5, solver="coordinate", tol=1e-11)
    assert not capped.converged.all()
    solution = torchscn.solve(x, D, lam2=1e-5, solver="auto", tol=1e-11)
    assert solution.converged.all()
    assert_close(solution.codes, nnls(x, D, torch.zeros(20, dtype=torch.float64), 1e-5), atol=1e-6, rtol=0)


@pytest.mark.parametrize("solver", ["coordinate", "fista"])
def test_warm_start_saves_iterations(solver, kernel):
    D, x = random_dictionary(32, 64), signals(100, 64)
    cold = torchscn.solve(x, D, 0.1, 1e-3, solver=solver, tol=1e-8)
    warm = torchscn.solve(x, D, 0.1, 1e-3, solver=solver, tol=1e-8, init=cold.codes)
    assert warm.n_iter < cold.n_iter / 2
    assert_close(warm.codes, cold.codes, atol=1e-7, rtol=0)


def test_fista_fixed_steps_is_the_published_iteration():
    D, x = random_dictionary(8, 12), signals(5, 12)
    rhs, gram = normal_form(x, D, 0.1, 1e-3)
    step = 1 / torch.linalg.eigvalsh(gram)[-1]
    codes = ahead = torch.zeros_like(rhs)
    t = 1.0
    for _ in range(50):
        following = (ahead - step * (ahead @ gram - rhs)).relu()
        t_next = (1 + (1 + 4 * t * t) ** 0.5) / 2
        ahead = following + (t - 1) / t_next * (following - codes)
        codes, t = following, t_next
    solution = torchscn.solve(x, D, 0.1, 1e-3, solver="fista", tol=0, max_iter=50)
    assert solution.n_iter == 50
    assert_close(solution.codes, codes)


@pytest.mark.parametrize("solver", ["coordinate", "fista", "auto"])
def test_no_tolerance_runs_exactly_so_many_iterations(solver, kernel):
    """Also where nothing changes any more."""
    solution = torchscn.solve(torch.ones(3, 2), torch.eye(2), solver=solver, tol=0, max_iter=30)
    assert (solution.n_iter, solution.mean_iter) == (30, 30.0)
    assert_close(solution.codes, torch.ones(3, 2))


def test_orthonormal_dictionary_is_one_shrinkage(kernel):
    x = signals(6, 5)
    codes = torchscn.sparse_code(x, torch.eye(5, dtype=torch.float64), 0.3, 0.5)
    assert_close(codes, (x - 0.3).relu() / 1.5)


@pytest.mark.parametrize("solver", SOLVERS)
def test_large_lam1_gives_zero(solver):
    D, x = random_dictionary(9, 14), signals(6, 14)
    largest = (x @ D.T).max().item()
    assert torchscn.sparse_code(x, D, largest, 1e-3, solver=solver).count_nonzero() == 0


@pytest.mark.parametrize("solver", SOLVERS)
def test_nonneg_qp_is_the_normal_form(solver):
    D, x = random_dictionary(9, 14), signals(6, 14)
    rhs, gram = normal_form(x, D, 0.1, 0.01)
    codes = torchscn.nonneg_qp(rhs, gram, solver=solver, tol=1e-10)
    assert_close(codes, torchscn.sparse_code(x, D, 0.1, 0.01, solver=solver, tol=1e-10))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bad_signal_is_nan_and_alone(solver, bad, dtype, kernel):
    D, x = random_dictionary(9, 14).to(dtype), signals(70, 14).to(dtype)
    clean = torchscn.solve(x, D, 0.1, 1e-3, solver=solver)
    x[3, 5] = bad
    solution = torchscn.solve(x, D, 0.1, 1e-3, solver=solver)
    others = torch.arange(70) != 3
    assert solution.codes[3].isnan().all()
    assert not solution.converged[3]
    assert_close(solution.codes[others], clean.codes[others], atol=1e-4, rtol=1e-4)
    assert solution.converged[others].all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_bad_dictionary_is_nan_everywhere(solver, kernel):
    D, x = random_dictionary(9, 14), signals(6, 14)
    D[0, 0] = torch.nan
    solution = torchscn.solve(x, D, 0.1, 1e-3, solver=solver)
    assert solution.codes.isnan().all()
    assert not solution.converged.any()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("lam2", [0.0, 1e-3])
def test_zero_atom_gets_zero_code(solver, lam2, kernel):
    D, x = random_dictionary(9, 14), signals(6, 14)
    D[4] = 0
    solution = torchscn.solve(x, D, 0.0, lam2, solver=solver, init=torch.ones(6, 9, dtype=torch.float64))
    assert solution.codes[:, 4].count_nonzero() == 0
    assert solution.converged.all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_atom_without_energy_gets_zero_even_if_wanted(solver, kernel):
    codes = torchscn.nonneg_qp(torch.ones(3, 2), torch.tensor([[2.0, 0.0], [0.0, 0.0]]), solver=solver)
    assert_close(codes, torch.tensor([[0.5, 0.0]]).expand(3, 2))


def test_unsymmetric_gram_counts_through_its_symmetric_part():
    rhs, gram = signals(6, 3), torch.tensor([[2.0, 0.5, 0.0], [0.1, 2.0, 0.3], [0.2, 0.0, 2.0]], dtype=torch.float64)
    symmetric = (gram + gram.mT) / 2
    assert_close(torchscn.nonneg_qp(rhs, gram, tol=1e-12), torchscn.nonneg_qp(rhs, symmetric, tol=1e-12))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (1,), (), (2, 3), (130,)])
def test_any_leading_shape(solver, shape, kernel):
    D, x = random_dictionary(6, 8), torch.randn(*shape, 8, dtype=torch.float64)
    solution = torchscn.solve(x, D, 0.1, 1e-3, solver=solver, tol=1e-9)
    assert solution.codes.shape == (*shape, 6)
    assert solution.residual.shape == solution.converged.shape == shape
    assert (solution.residual < 1e-7).all()


@pytest.mark.parametrize("n_atoms", [1, 2, 3, 5, 17, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_number_of_atoms(n_atoms, dtype, kernel):
    D, x = random_dictionary(n_atoms, 50).to(dtype), signals(33, 50).to(dtype)
    solution = torchscn.solve(x, D, 0.1, 0.1, solver="coordinate", tol=1e-5)
    assert solution.converged.all()
    assert solution.residual.max() < 1e-3


def test_non_contiguous_input(kernel):
    D, x = random_dictionary(8, 6), signals(40, 6)
    expected = torchscn.sparse_code(x, D, 0.1, 1e-3)
    strided = torch.empty(6, 80, dtype=torch.float64).mT[::2].copy_(x)
    assert not strided.is_contiguous()
    assert_close(torchscn.sparse_code(strided, D.mT.contiguous().mT, 0.1, 1e-3), expected)


@pytest.mark.parametrize("solver", ["auto", "active_set"])
@pytest.mark.parametrize("seed", range(6))
def test_overcomplete_dictionaries_are_solved_exactly(solver, seed, kernel):
    """Few features, many atoms: sweeps alone would take thousands of rounds."""
    D, x = random_dictionary(40, 6, seed), signals(9, 6, seed)
    solution = torchscn.solve(x, D, 0.02, 1e-4, solver=solver, tol=1e-9)
    assert solution.converged.all()
    assert_close(solution.codes, nnls(x, D, torch.full((40,), 0.02).double(), 1e-4), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("solver", torchscn.list_solvers())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_tiny_atom_fools_nobody(solver, dtype, kernel):
    D, x = random_dictionary(12, 20).to(dtype), signals(60, 20).to(dtype)
    D[5] *= 1e-5
    x[:20] += 30 * D[5] / D[5].norm()  # so that its code matters
    exact = nnls(x.double(), D.double(), torch.zeros(12).double(), 0.0)
    solution = torchscn.solve(x, D, solver=solver, tol=1e-4)
    error = (solution.codes - exact).norm(dim=-1) / exact.norm(dim=-1)
    parts = D.double().norm(dim=-1)
    part_error = ((solution.codes - exact) * parts).norm(dim=-1) / (exact * parts).norm(dim=-1)
    assert solution.converged.double().mean() > 0.9
    assert torch.maximum(error, part_error)[solution.converged].max() < 1e-3


def test_failing_exact_solver_returns_its_best_codes(kernel):
    """Dependent atoms without lam2, and too few iterations."""
    D, x = random_dictionary(100, 50).float(), signals(20, 50).float()
    solution = torchscn.solve(x, D, 0.1, solver="active_set", max_iter=2)
    assert not solution.converged.all()
    assert torchscn.objective(x, D, solution.codes, 0.1).lt(x.square().sum(-1) / 2).all()
    assert solution.codes.max() < 100


def test_unfinished_signals_alone_take_longer(kernel):
    """A black signal beside bright ones: neither holds the other up, nor hides behind it."""
    D, x = random_dictionary(24, 10), signals(64, 10)
    x[::2] *= 1e-12
    solution = torchscn.solve(x, D, 0.0, 1e-3, tol=1e-6)
    exact = nnls(x * torch.where(torch.arange(64) % 2 == 0, 1e12, 1.0)[:, None], D, torch.zeros(24).double(), 1e-3)
    found = solution.codes * torch.where(torch.arange(64) % 2 == 0, 1e12, 1.0)[:, None]
    assert solution.converged.all()
    assert_close(found, exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-20, 1e-8, 1e8, 1e20])
@pytest.mark.parametrize("solver", torchscn.list_solvers())
def test_bright_and_dim_signals(scale, solver, kernel):
    D, x = random_dictionary(9, 14).float(), signals(20, 14).float()
    expected = torchscn.solve(x, D, solver=solver, tol=1e-6)
    solution = torchscn.solve(x * scale, D, solver=solver, tol=1e-6)
    assert solution.converged.all()
    assert_close(solution.codes / scale, expected.codes, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("scale", [1e-15, 1e-25, 1e-32])
@pytest.mark.parametrize("solver", torchscn.list_solvers())
def test_dictionary_whose_gram_matrix_vanishes(scale, solver, kernel):
    D, x = random_dictionary(5, 12).float(), signals(6, 12).float()
    expected = torchscn.solve(x, D, solver=solver, tol=1e-6).codes
    solution = torchscn.solve(x, D * scale, solver=solver, tol=1e-6)
    assert solution.converged.all()
    assert_close(solution.codes * scale, expected, atol=1e-4, rtol=1e-3)
    x.requires_grad_()
    torchscn.sparse_code(x, D * scale, solver=solver).sum().mul(scale).backward()
    assert x.grad.abs().max() > 0.01


@pytest.mark.parametrize("solver", torchscn.list_solvers())
def test_indefinite_gram_matrix_is_refused(solver, kernel):
    indefinite = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    negative = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    for gram in (indefinite, negative, negative.double()):
        with pytest.raises(ValueError, match="not positive semi-definite"):
            torchscn.nonneg_qp(torch.ones(3, 2, dtype=gram.dtype), gram, solver=solver)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(10))
def test_singular_gram_matrix_is_not_refused(seed, dtype, kernel):
    """Rounding makes some of its eigenvalues negative."""
    D = random_dictionary(60, 7, seed).to(dtype) * 100
    assert torchscn.solve(signals(3, 7, seed).to(dtype), D, 0.1).codes.isfinite().all()


def test_unbounded_problem_is_refused(kernel):
    """A penalty below zero on an atom without energy."""
    with pytest.raises(ValueError, match="its code would be infinite"):
        torchscn.sparse_code(torch.ones(3, 2), torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([0.0, -1.0]))


def test_refusals_reach_through_transforms():
    gram = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(ValueError, match="not positive semi-definite"):
        torch.func.vmap(lambda rhs: torchscn.nonneg_qp(rhs, gram))(torch.ones(3, 2))
    with pytest.raises(ValueError, match="not positive semi-definite"):
        torch.func.grad(lambda rhs: torchscn.nonneg_qp(rhs, gram).sum())(torch.ones(3, 2))


TRIANGLE = torch.tensor([[1.0, 0, 0], [0.9, 0.43589, 0], [0.8, 0.2, 0.56]])


@pytest.mark.parametrize("solver", torchscn.list_solvers())
def test_wild_starts_do_no_harm(solver, kernel):
    x = torch.tensor([[1.0, 0.5, 0.3]])
    expected = torchscn.solve(x, TRIANGLE, solver=solver).codes
    for size in (1e12, 1e20, 3e38):
        solution = torchscn.solve(x, TRIANGLE, solver=solver, init=torch.full((1, 3), size))
        assert solution.converged.all()
        assert_close(solution.codes, expected, atol=1e-3, rtol=1e-3)
    assert (torchscn.solve(0 * x, TRIANGLE, solver=solver, init=torch.ones(1, 3)).codes == 0).all()


@pytest.mark.parametrize("solver", torchscn.list_solvers())
def test_large_penalties_do_not_hide_small_signals(solver, kernel):
    """One atom's right-hand side is -1, those of the others are 1e-24."""
    x, D = torch.tensor([[1.0, 0.5, 0.3]]), torch.cat([TRIANGLE, torch.tensor([[0.0, 0, -1]])])
    expected = torchscn.solve(x, TRIANGLE, solver=solver, tol=1e-6).codes
    solution = torchscn.solve(x * 1e-24, D, torch.tensor([0.0, 0, 0, 1]), solver=solver, tol=1e-6)
    assert solution.converged.all()
    assert_close(solution.codes[:, :3] * 1e24, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("solver", torchscn.list_solvers())
def test_cancelling_codes_are_not_trusted(solver, kernel):
    """Nearly opposite atoms in float32: what their difference means is lost in rounding."""
    torch.manual_seed(1)
    D = torch.randn(2, 4) / 2
    D[1] = -D[0] + 1e-4 * torch.randn(4)
    x = torch.randn(64, 4)
    solution = torchscn.solve(x, D, solver=solver)
    exact = nnls(x.double(), D.double(), torch.zeros(2).double(), 0.0)
    gap = torchscn.objective(x.double(), D.double(), solution.codes.double()) - torchscn.objective(
        x.double(), D.double(), exact
    )
    allowed = 1e-5 * (x.double().square() + (exact * D.double().norm(dim=-1)).square().sum(-1, keepdim=True)).sum(-1)
    assert (gap <= allowed)[solution.converged].all()
    assert solution.codes.isfinite().all()


def test_dim_to_the_last_digit(kernel):
    """Numbers below the normal ones have few digits, but are no NaN."""
    x = torch.tensor([[1.0, 0.5, 0.3]]) * 1e-40
    assert_close(torchscn.solve(x, TRIANGLE).codes * 1e20, torchscn.solve(x * 1e20, TRIANGLE).codes, rtol=0.1, atol=0)


def test_norms_beyond_the_number_type_are_refused(kernel):
    D = TRIANGLE * torch.tensor([1e15, 1e-8, 1.0])[:, None]
    with pytest.raises(ValueError, match="its code would be infinite"):
        torchscn.solve(torch.tensor([[-1.0, 3.0, 0.3]]), D)


def test_blocks_stop_at_rounding(kernel):
    """Steps that no longer shrink because nothing is left to gain."""
    for seed in range(5):
        D = random_dictionary(128, 128, seed).float()
        options = torchscn.Options(tol=1e-6, stop="block")
        rhs, gram = normal_form(signals(64, 128, seed).float(), D / D.norm(dim=-1, keepdim=True), 0.05, 0.1)
        assert torchscn.solvers.SOLVERS["auto"](Problem(rhs, gram), options).n_iter < 100


def test_negative_lam2_is_refused():
    D, x = random_dictionary(3, 5), signals(2, 5)
    with pytest.raises(ValueError, match="lam2 must be at least 0"):
        torchscn.sparse_code(x, D, 0.1, torch.tensor(-0.1, dtype=torch.float64))
