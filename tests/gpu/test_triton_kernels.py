"""The Triton kernels in the interpreter, which is slow: the smallest sizes that mean something.

9 atoms stay in registers; 20 are two blocks, the second one not full. 35 signals are two tiles, the second not full.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import torchscn
from tests.problems import random_dictionary, signals
from torchscn.constraints import Bounds, Constraint, NonNegative, OnSupport
from torchscn.kernels import sweeps_for
from torchscn.kernels.gpu import triton_sweeps_for
from torchscn.options import Options
from torchscn.problem import Affine, Problem, Result
from torchscn.solvers import SOLVERS
from torchscn.solvers.iterate import sweep_rule

pytestmark = [
    pytest.mark.usefixtures("triton"),
    # NumPy, which interprets them, warns about numbers that the kernels expect and sort out.
    pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning"),
]

TOL = 1e-3
OPTIONS = Options(tol=TOL)
SIZES = [9, 20]


def constraint_of(kind: str, n_signals: int, n_atoms: int) -> Constraint:
    if kind == "on_support":
        return OnSupport((signals(n_signals, n_atoms, seed=7) > 0).float())
    if kind == "bounds":
        return Bounds(torch.full((n_atoms,), -0.2), torch.full((n_atoms,), 0.5), torch.full((n_atoms,), 0.05))
    if kind == "own_bounds":
        width = signals(n_signals, n_atoms, seed=9).abs().float()
        return Bounds(-width / 4, width, torch.full((n_atoms,), 0.05))
    return NonNegative()


def make_problem(
    n_atoms: int, kind: str = "non_negative", n_signals: int = 9, n_features: int = 40, lam2: float = 1e-2
) -> Problem:
    D = random_dictionary(n_atoms, n_features)
    gram = D @ D.mT + lam2 * torch.eye(n_atoms, dtype=D.dtype)
    rhs = signals(n_signals, n_features) @ D.mT
    return Problem(rhs.float(), gram.float(), constraint=constraint_of(kind, n_signals, n_atoms))


def solve(problem: Problem, options: Options = OPTIONS) -> Result:
    assert triton_sweeps_for(problem) is not None
    return SOLVERS["auto"](problem, options)


@contextmanager
def compiled_kernel() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TORCHSCN_KERNEL")
        yield


def on_cpu(problem: Problem, options: Options) -> Result:
    with compiled_kernel():
        return sweeps_for(problem)(problem, sweep_rule(problem, options, finishes=options.max_iter is None))


def exact(problem: Problem) -> Tensor:
    """Codes in float64, by the solver that has no tolerance."""
    constraint = type(problem.constraint)(*(tensor.double() for tensor in problem.constraint.tensors()))
    shift = None if problem.shift is None else problem.shift.double()
    precise = Problem(problem.rhs.double(), problem.gram.double(), shift, constraint=constraint)
    with compiled_kernel():
        return SOLVERS["active_set"](precise, Options()).codes


def errors(result: Result, problem: Problem) -> Tensor:
    """The error of every signal, relative to the length of its codes."""
    expected = exact(problem)
    return (result.codes - expected).norm(dim=1) / expected.norm(dim=1).clamp(min=1e-30)


@pytest.mark.parametrize("n_atoms", SIZES)
@pytest.mark.parametrize("kind", ["non_negative", "on_support", "bounds"])
def test_every_signal_keeps_the_promise(n_atoms, kind):
    problem = replace(make_problem(n_atoms, kind, n_signals=35), shift=torch.full((n_atoms,), 0.05))
    result, compiled = solve(problem), on_cpu(problem, OPTIONS)
    assert result.converged.all()
    assert errors(result, problem).max() <= (2 if kind == "on_support" else 10) * TOL
    assert abs(int(result.n_iter) - compiled.n_iter) <= 1  # the same rule, with another estimate of the conditioning
    assert 0 < float(result.mean_iter) <= int(result.n_iter)


def test_short_steps_are_not_taken_for_accuracy():
    """Atoms that overlap much, so that sweeps crawl: their steps are short long before the codes are right."""
    problem = make_problem(9, n_signals=3)
    gram = 0.02 * problem.gram + torch.ones(9, 9)
    crawling = Problem(problem.rhs, gram, constraint=OnSupport(torch.ones(3, 9)))
    result = solve(crawling, Options(tol=0.04, max_iter=30))
    assert errors(result, crawling).max() > 0.4
    assert not result.converged.any()


def test_codes_of_small_atoms_count_as_much_as_their_size():
    """An atom a thousand times shorter than its neighbour, which it overlaps, with a code as large."""
    D = torch.tensor([[1.0, 0.0], [0.8e-3, 0.6e-3]])
    gram = D @ D.mT
    result = solve(Problem(torch.ones(1, 2) @ gram, gram), Options(tol=1e-2, max_iter=100))
    assert result.converged.all()
    assert (result.codes - 1).norm() <= 0.1 * 2**0.5


@pytest.mark.parametrize(("n_atoms", "kind"), [(9, "non_negative"), (20, "on_support")])
def test_tiles_are_judged_as_a_whole(n_atoms, kind):
    problem = make_problem(n_atoms, kind)
    by_signal, by_block = solve(problem), solve(problem, Options(tol=TOL, stop="block"))
    assert by_block.converged.all()
    expected = exact(problem)
    assert (by_block.codes - expected).norm() <= 2 * TOL * expected.norm()
    assert int(by_block.n_iter) <= int(by_signal.n_iter) + 1


def test_a_tile_goes_on_until_it_is_accurate_as_a_whole():
    """Nearly orthogonal atoms: every signal keeps its promise, ten times the tolerance, after one sweep."""
    problem = make_problem(9, n_signals=20, n_features=400)
    codes, expected = solve(problem, Options(tol=0.03, stop="block")).codes, exact(problem)
    assert (codes - expected).norm() <= 0.03 * expected.norm()


def test_large_batches_have_larger_tiles(monkeypatch):
    from torchscn.kernels.gpu import launch

    problem = make_problem(9, n_signals=70)
    small = solve(problem)
    monkeypatch.setattr(launch, "FEW_SIGNALS", 64)
    torch.testing.assert_close(solve(problem).codes, small.codes, rtol=0, atol=3 * TOL)


def test_one_atom():
    problem = Problem(torch.tensor([[2.0], [-1.0]]), torch.tensor([[4.0]]))
    result = solve(problem)
    assert result.codes.tolist() == [[0.5], [0.0]]
    assert result.converged.all()


@pytest.mark.parametrize("n_atoms", SIZES)
def test_bad_signals_are_nan_and_alone(n_atoms):
    problem = make_problem(n_atoms)
    clean = solve(problem)
    rhs = problem.rhs.clone()
    rhs[3, 2], rhs[8, n_atoms - 1] = torch.nan, -torch.inf
    result = solve(replace(problem, rhs=rhs))
    bad = torch.tensor([3, 8])
    assert torch.isnan(result.codes[bad]).all()
    assert not result.converged[bad].any()
    others = torch.ones(9, dtype=torch.bool).index_fill(0, bad, False)
    assert result.converged[others].all()
    torch.testing.assert_close(result.codes[others], clean.codes[others], rtol=0, atol=3 * TOL)


@pytest.mark.parametrize("n_atoms", SIZES)
def test_bad_matrix_makes_everything_nan(n_atoms):
    problem = make_problem(n_atoms, n_signals=3)
    gram = problem.gram.clone()
    gram[1, 2] = torch.inf
    result = solve(replace(problem, gram=gram))
    assert torch.isnan(result.codes).all()
    assert not result.converged.any()


@pytest.mark.parametrize("n_atoms", SIZES)
def test_sizes_of_signals_and_atoms_do_not_matter(n_atoms):
    """Atoms a million times smaller than others and one without energy, signals near the ends of the number range."""
    problem = make_problem(n_atoms, n_signals=5)
    norms = torch.logspace(-3, 3, n_atoms)
    norms[4] = 0
    sizes = torch.tensor([1e-34, 1.0, 1e34, 0.0, 1e3])[:, None]
    uneven = Problem(problem.rhs * norms * sizes, problem.gram * norms * norms[:, None])
    reference = replace(problem, gram=problem.gram * (norms > 0) * (norms > 0)[:, None], rhs=problem.rhs * (norms > 0))
    result = solve(uneven)
    assert result.converged.all()
    assert not result.codes[3].any()
    assert not result.codes[:, 4].any()
    relative = result.codes / torch.where(sizes > 0, sizes, 1.0) * norms
    expected = exact(reference)
    assert ((relative - expected).norm(dim=1) <= 10 * TOL * expected.norm(dim=1))[[0, 1, 2, 4]].all()
    # In units of codes, too, where the smallest atom counts most.
    own = torch.where(norms > 0, expected / norms, 0.0)
    assert ((relative / norms.clamp(min=1e-30) - own).norm(dim=1) <= 10 * TOL * own.norm(dim=1))[[0, 1, 2, 4]].all()


@pytest.mark.parametrize(("n_atoms", "kind"), [(9, "non_negative"), (20, "on_support"), (20, "bounds")])
def test_warm_start(n_atoms, kind):
    problem = make_problem(n_atoms, kind)
    cold = solve(problem)
    warm = solve(replace(problem, init=cold.codes))
    assert int(warm.n_iter) <= 2 < int(cold.n_iter)
    assert errors(warm, problem).max() <= 10 * TOL
    wild = torch.full_like(problem.rhs, 1e30)
    assert errors(solve(replace(problem, init=wild)), problem).max() <= 10 * TOL


@pytest.mark.parametrize("n_atoms", SIZES)
def test_scale_and_offset(n_atoms):
    problem = make_problem(n_atoms)
    affine = Affine(torch.linspace(-1, 2, n_atoms), torch.linspace(0, 1, n_atoms))
    expected = solve(problem).codes * affine.scale + affine.offset
    torch.testing.assert_close(solve(replace(problem, affine=affine)).codes, expected)


def test_bounds_for_every_signal():
    problem = make_problem(9, "own_bounds", n_signals=7)
    affine = Affine(torch.full((9,), 2.0), torch.full((9,), 1.0))
    result = solve(problem)
    assert errors(result, problem).max() <= 10 * TOL
    assert (result.codes >= problem.constraint.lower).all()
    assert (result.codes <= problem.constraint.upper).all()
    torch.testing.assert_close(solve(replace(problem, affine=affine)).codes, 2 * result.codes + 1)


@pytest.mark.parametrize("n_atoms", SIZES)
def test_fixed_number_of_sweeps(n_atoms):
    problem, options = make_problem(n_atoms), Options(tol=0.0, max_iter=3)
    result = solve(problem, options)
    assert int(result.n_iter) == 3
    torch.testing.assert_close(result.codes, on_cpu(problem, options).codes, rtol=1e-4, atol=1e-5)


def test_what_is_stopped_early_is_not_converged():
    result = solve(make_problem(9), Options(tol=1e-5, max_iter=2))
    assert int(result.n_iter) == 2
    assert not result.converged.any()


@pytest.mark.parametrize("kind", ["non_negative", "on_support", "bounds"])
def test_exact_steps_finish_what_sweeps_cannot(kind):
    problem = make_problem(10, kind, n_signals=3, n_features=5, lam2=1e-3)
    options = Options(tol=1e-4)
    swept = solve(problem, options.change(max_iter=16))
    assert not swept.converged.all()
    result, compiled = solve(problem, options), on_cpu(problem, options)
    assert result.converged.all()
    assert errors(result, problem).max() <= max(1e-4, 2 * float(errors(compiled, problem).max()))


def test_exact_steps_then_scale_and_offset():
    problem = make_problem(10, n_signals=2, n_features=5, lam2=1e-3)
    affine = Affine(torch.linspace(-1, 2, 10), torch.linspace(0, 1, 10))
    expected = solve(problem).codes * affine.scale + affine.offset
    torch.testing.assert_close(solve(replace(problem, affine=affine)).codes, expected)


def test_small_codes_beside_a_large_negative_pull_are_finished():
    problem = make_problem(10, n_signals=2, n_features=5, lam2=1e-3)
    rhs = 1e-23 * problem.rhs
    rhs[:, 7] = -1.0
    tiny = replace(problem, rhs=rhs)
    result = solve(tiny, Options(tol=1e-4))
    assert result.converged.all()
    assert errors(result, tiny).max() <= 1e-3


@pytest.mark.parametrize("n_atoms", SIZES)
def test_a_start_far_off_leaves_no_trace(n_atoms):
    problem = make_problem(n_atoms)
    init = 1e4 * signals(9, n_atoms, seed=5).abs().float()
    result = solve(replace(problem, init=init), Options(tol=1e-5, max_iter=100))
    assert result.converged.all()
    assert errors(result, problem).max() <= 1e-4


def test_codes_that_cancel_are_not_called_converged():
    """Two equal atoms, one with a large code, the other with its opposite: nothing says how large."""
    gram = torch.ones(2, 2)
    problem = Problem(torch.ones(1, 2), gram, constraint=everything(2))
    assert solve(problem).converged.all()
    started = replace(problem, init=torch.tensor([[1e4, -1e4]]))
    assert not solve(started).converged.any()


def everything(n_atoms: int) -> Bounds:
    """No bounds at all."""
    infinite = torch.full((n_atoms,), torch.inf)
    return Bounds(-infinite, infinite, torch.zeros(n_atoms))


@pytest.mark.parametrize("kind", ["non_negative", "on_support", "bounds"])
@pytest.mark.parametrize("n_atoms", SIZES)
def test_matrices_without_an_optimum_are_not_called_converged(n_atoms, kind):
    constraint = {"non_negative": NonNegative(), "on_support": OnSupport(torch.ones(2, n_atoms))}.get(kind)
    gram = torch.eye(n_atoms)
    gram[0, 1] = gram[1, 0] = 3.0
    rhs = torch.ones(2, n_atoms)
    indefinite = Problem(rhs, gram, constraint=constraint or everything(n_atoms))
    assert not solve(indefinite, Options(tol=TOL, max_iter=60)).converged.any()
    assert not solve(replace(indefinite, gram=-torch.eye(n_atoms)), Options(tol=TOL, max_iter=3)).converged.any()


def test_atoms_lost_to_underflow_are_not_called_converged():
    D = 1e-23 * random_dictionary(9, 30).float()
    x = signals(3, 30).float()
    assert not torchscn.solve(x, D).converged.any()


def test_signals_that_do_not_exist_take_no_time():
    """A tile that is not full, and a shift that would give codes to what is not there."""
    problem = replace(make_problem(20, n_signals=3), shift=torch.full((20,), -0.1))
    full = replace(problem, rhs=problem.rhs.repeat(11, 1)[:32])
    assert int(solve(problem).n_iter) == int(solve(full).n_iter)


def test_codes_at_a_bound_are_exactly_there():
    problem = make_problem(9, "bounds")
    bounds = problem.constraint
    found, expected = solve(problem, Options(tol=1e-5)).codes, exact(problem)
    assert ((expected == bounds.lower) | (expected == bounds.upper)).any()
    assert torch.equal(bounds.movable(found) > 0, bounds.movable(expected.float()) > 0)


def test_nothing_to_solve():
    for shape in ((0, 9), (5, 0)):
        rhs = torch.empty(*shape)
        result = sweeps_for(Problem(rhs, torch.eye(shape[1])))(
            Problem(rhs, torch.eye(shape[1])), sweep_rule(make_problem(9), OPTIONS)
        )
        assert result.codes.shape == shape
        assert result.converged.all()


@pytest.mark.parametrize("n_atoms", SIZES)
def test_gradients_agree_with_the_cpu(n_atoms):
    D = random_dictionary(n_atoms, 30).float().requires_grad_()
    x = signals(6, 30).float().requires_grad_()
    lam1 = torch.full((n_atoms,), 0.05, requires_grad=True)
    weights = signals(6, n_atoms, seed=3).float()

    def gradients() -> tuple[Tensor, ...]:
        codes = torchscn.sparse_code(x, D, lam1, lam2=0.1, tol=1e-5)
        return torch.autograd.grad((codes * weights).sum(), (x, D, lam1))

    found = gradients()
    with compiled_kernel():
        expected_gradients = gradients()
    for own, expected in zip(found, expected_gradients, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_whole_network():
    """The trained SCN-1 on one small image: scores, and gradients of all weights."""
    model = torchscn.create_model("scn1", pretrained="cifar10")
    x = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(0))

    def scores_and_gradients() -> tuple[Tensor, Tensor]:
        scores = model(x)
        gradients = torch.autograd.grad(scores[0, 3], list(model.parameters()))
        return scores.detach(), torch.cat([gradient.flatten() for gradient in gradients])

    scores, gradients = scores_and_gradients()
    with compiled_kernel():
        expected_scores, expected_gradients = scores_and_gradients()
    assert (scores - expected_scores).norm() <= 0.05 * expected_scores.norm()
    assert torch.cosine_similarity(gradients, expected_gradients, dim=0) > 0.99
