"""Signed codes, bounds and sums: solved as other people's programs solve them, differentiated, and bad ones refused."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from oracles import by_bounds, by_sum, signed_lasso
from problems import bump_dictionary, random_dictionary, signals, zero_atom_dictionary
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

import torchscn
from torchscn import Bounds, SumTo
from torchscn.constraints import CONSTRAINTS, NAMED_CONSTRAINTS
from torchscn.kernels import available_kernels

SEPARABLE = ("auto", "coordinate", "active_set", "fista")
KERNELS = [available_kernels()[-1], "torch"]


@pytest.fixture(params=KERNELS)
def kernel(request, monkeypatch):
    monkeypatch.setenv("TORCHSCN_KERNEL", request.param)


def random_bounds(n_atoms, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lower, upper = 0.2 * torch.randn(2, n_atoms, generator=generator, dtype=torch.float64).sort(0).values
    lower[0], upper[1] = -math.inf, math.inf
    lower[2] = 0.0
    upper[2] = upper[2].abs() + 0.1
    return lower, upper


# Sweeps alone need very long for dependent atoms.
BOUNDED = [
    *((solver, random_dictionary(12, 20)) for solver in SEPARABLE),
    *((solver, D) for solver in SEPARABLE[::2] for D in (random_dictionary(20, 9), bump_dictionary(16, 40))),
    *(("fista", D) for D in (random_dictionary(20, 9), bump_dictionary(16, 40))),
]


@pytest.mark.parametrize(("solver", "dictionary"), BOUNDED)
def test_bounds(kernel, solver, dictionary):
    x, (lower, upper) = signals(9, dictionary.shape[1]), random_bounds(len(dictionary))
    lam2 = 0.0 if solver in ("auto", "active_set") and len(dictionary) != 20 else 1e-2
    solution = torchscn.solve(x, dictionary, 0.0, lam2, constraint=Bounds(lower, upper), solver=solver, tol=1e-9)
    assert solution.converged.all()
    assert_close(solution.codes, by_bounds(x, dictionary, lam2, lower, upper), atol=1e-7, rtol=1e-7)
    residual = torchscn.kkt_residual(x, dictionary, solution.codes, 0.0, lam2, constraint=Bounds(lower, upper))
    assert_close(residual, solution.residual, atol=1e-12, rtol=0)


@pytest.mark.parametrize("solver", SEPARABLE)
@pytest.mark.parametrize("lam2", [0.0, 0.1])
def test_signed(kernel, solver, lam2):
    D, x = random_dictionary(12, 20), signals(9, 20)
    solution = torchscn.solve(x, D, 0.3, lam2, constraint="signed", solver=solver, tol=1e-9)
    assert solution.converged.all()
    assert_close(solution.codes, signed_lasso(x, D, 0.3, lam2), atol=1e-7, rtol=1e-7)
    assert (solution.codes < 0).any()
    assert (solution.codes == 0).any()
    assert torchscn.kkt_residual(x, D, solution.codes, 0.3, lam2, constraint="signed").max() < 1e-7


def test_signed_without_penalty_is_least_squares(kernel):
    D, x = random_dictionary(6, 20), signals(9, 20)
    assert_close(torchscn.sparse_code(x, D, constraint="signed", tol=1e-10), torch.linalg.lstsq(D.T, x.T).solution.T)


@pytest.mark.parametrize("solver", ["auto", "active_set", "fista"])
@pytest.mark.parametrize(
    "dictionary", [random_dictionary(8, 20), random_dictionary(6, 5), zero_atom_dictionary(6, 9), torch.eye(4).double()]
)
@pytest.mark.parametrize("total", [1.0, 7.5])
def test_sum(kernel, solver, dictionary, total):
    x = signals(9, dictionary.shape[1]) + 1
    solution = torchscn.solve(x, dictionary, constraint=SumTo(total), solver=solver, tol=1e-10)
    assert solution.converged.all()
    assert_close(solution.codes, by_sum(x, dictionary, total), atol=1e-8, rtol=0)
    assert_close(solution.codes.sum(-1), torch.full((9,), total, dtype=torch.float64), rtol=1e-12, atol=0)
    assert solution.codes.min() >= 0
    assert torchscn.kkt_residual(x, dictionary, solution.codes, constraint=SumTo(total)).max() < 1e-8


def test_sum_with_atoms_of_very_different_norm(kernel):
    D = random_dictionary(8, 12) * 10.0 ** torch.linspace(-6, 6, 8, dtype=torch.float64)[:, None]
    x = signals(9, 12)
    codes = torchscn.sparse_code(x, D, constraint="sum_to_one")
    expected = by_sum(x, D, 1.0)
    best = torchscn.objective(x, D, expected)
    assert (torchscn.objective(x, D, codes) <= best + 1e-9 * x.square().sum(-1)).all()


def test_equals_a_general_program():
    """Abundances by scipy's SLSQP, which knows nothing of the problem's form."""
    D, x = random_dictionary(5, 12).abs(), signals(4, 12).abs()
    codes = torchscn.sparse_code(x, D, 0.1, 0.05, constraint="sum_to_one")
    for row, code in zip(x.numpy(), codes, strict=True):
        found = scipy.optimize.minimize(
            lambda a, row=row: ((row - a @ D.numpy()) ** 2).sum() / 2 + 0.1 * a.sum() + 0.025 * (a**2).sum(),
            np.full(5, 0.2),
            method="SLSQP",
            bounds=[(0, None)] * 5,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
            options={"ftol": 1e-15, "maxiter": 1000},
        )
        assert_close(code, torch.from_numpy(found.x), atol=1e-6, rtol=0)


@pytest.mark.parametrize("constraint", ["signed", "sum_to_one", Bounds(-0.1, 0.2)])
def test_float32(kernel, constraint):
    D, x = random_dictionary(12, 20), signals(70, 20)
    exact = torchscn.sparse_code(x, D, 0.1, 0.01, constraint=constraint, tol=1e-10)
    codes = torchscn.sparse_code(x.float(), D.float(), 0.1, 0.01, constraint=constraint, tol=1e-6)
    assert_close(codes.double(), exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("constraint", ["signed", "sum_to_one", Bounds(-0.1, 0.2)])
def test_a_dictionary_for_every_signal(kernel, constraint):
    D, x = torch.stack([random_dictionary(6, 9, seed) for seed in range(5)]), signals(5, 9)
    codes = torchscn.sparse_code(x, D, 0.1, 0.01, constraint=constraint)
    one_by_one = [
        torchscn.sparse_code(row, atoms, 0.1, 0.01, constraint=constraint, tol=1e-12)
        for row, atoms in zip(x, D, strict=True)
    ]
    assert_close(codes, torch.stack(one_by_one), atol=1e-9, rtol=0)
    assert torchscn.kkt_residual(x, D, codes, 0.1, 0.01, constraint=constraint).max() < 1e-9
    assert torchscn.solve(x, D, 0.1, 0.01, constraint=constraint).converged.all()


def leaf(*shape, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.rand(shape, generator=generator, dtype=torch.float64)).requires_grad_()


def bounded(x, D, lam1, lower, upper):
    return torchscn.sparse_code(x, D, lam1, 0.05, constraint=Bounds(-lower, upper), tol=1e-12)


def signed(x, D, lam1):
    return torchscn.sparse_code(x, D, lam1, 0.05, constraint="signed", tol=1e-12)


def summing(x, D, lam1, total):
    return torchscn.sparse_code(x, D, lam1, 0.05, constraint=SumTo(total + 0.5), tol=1e-12)


DERIVATIVES = [
    (bounded, [(6,), (6,), (6,)]),
    (bounded, [(4, 1), (4, 6), ()]),
    (signed, [()]),
    (signed, [(4, 1)]),
    (summing, [(6,), ()]),
    (summing, [(4, 6), (4, 1)]),
]


@pytest.mark.parametrize(("function", "shapes"), DERIVATIVES)
@pytest.mark.parametrize("own", [False, True])
def test_derivatives(function, shapes, own):
    x, D = signals(4, 9).requires_grad_(), random_dictionary(6, 9)
    if own:
        D = torch.stack([random_dictionary(6, 9, seed) for seed in range(4)])
    others = [leaf(*shape, scale=0.3, seed=seed) for seed, shape in enumerate(shapes)]
    inputs = (x, D.requires_grad_(), *others)
    assert gradcheck(function, inputs, check_forward_ad=True)
    if not own:
        assert gradgradcheck(function, inputs)


def test_gradients_of_bounds_are_felt():
    x, D, lower, upper = signals(4, 9), random_dictionary(6, 9), leaf(6, scale=0.05), leaf(6, scale=0.05)
    bounded(x, D, 0.01, lower, upper).sum().backward()
    assert lower.grad.count_nonzero() > 0
    assert upper.grad.count_nonzero() > 0


def test_equal_bounds_share_one_gradient():
    """A fixed code moves with its bounds together; the lower one is credited."""
    D, x, fixed = random_dictionary(3, 9), signals(4, 9), leaf(3)
    codes = torchscn.sparse_code(x, D, constraint=Bounds(fixed, fixed))
    assert_close(codes, fixed.expand(4, 3))
    codes.sum().backward()
    assert_close(fixed.grad, torch.full((3,), 4.0, dtype=torch.float64))


def test_unrolled_gradients_agree():
    x, D, lam1 = signals(4, 9), random_dictionary(6, 9).requires_grad_(), leaf(6, scale=0.3)
    options = {"constraint": "signed", "tol": 1e-12}
    unrolled = torchscn.sparse_code(x, D, lam1, 0.05, solver="fista", grad="unrolled", max_iter=3000, **options)
    implicit = torchscn.sparse_code(x, D, lam1, 0.05, **options)
    for ours, theirs in zip(
        torch.autograd.grad(implicit.square().sum(), (D, lam1)),
        torch.autograd.grad(unrolled.square().sum(), (D, lam1)),
        strict=True,
    ):
        assert_close(ours, theirs, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", ["lower", "dictionary", "total", "x"])
def test_vmap(name):
    x, D, upper = signals(4, 9), random_dictionary(6, 9), leaf(6)
    if name == "lower":
        batch, function = -torch.rand(3, 6).double(), lambda lower: bounded(x, D, 0.1, -lower, upper)
    elif name == "dictionary":
        batch = torch.stack([random_dictionary(6, 9, seed) for seed in range(3)])
        function = lambda D: summing(x, D, 0.1, 1.0)  # noqa: E731
    elif name == "total":
        batch, function = torch.rand(3).double(), lambda total: summing(x, D, 0.1, total)
    else:
        batch, function = torch.stack([signals(4, 9, seed) for seed in range(3)]), lambda x: signed(x, D, 0.1)
    assert_close(torch.func.vmap(function)(batch), torch.stack([function(entry) for entry in batch]))


@pytest.mark.parametrize("kind", ["bounds", "sum_to"])
def test_operator_passes_torch_library_checks(kind):
    D, rhs = random_dictionary(5, 12), signals(3, 5).requires_grad_()
    gram = (D @ D.T).requires_grad_()
    tensors = {
        "bounds": (-leaf(5).detach(), leaf(5).detach(), leaf(5, scale=0.1)),
        "sum_to": (leaf(3, 1), None, None),
    }[kind]
    tensors = tuple(None if tensor is None else tensor.detach().clone().requires_grad_() for tensor in tensors)
    torch.library.opcheck(
        torch.ops.torchscn.solve.default, (rhs, gram, None, None, kind, *tensors, "auto", 1e-10, None, "signal")
    )


def test_compiles():
    D, x = random_dictionary(6, 9), signals(4, 9).requires_grad_()

    def loss(x):
        return torchscn.sparse_code(x, D, 0.1, 0.05, constraint="signed", tol=1e-10).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    (ours,) = torch.autograd.grad(compiled(x), x)
    (theirs,) = torch.autograd.grad(loss(x), x)
    assert_close(ours, theirs)


def test_penalty_per_signal():
    """``(..., 1)`` is one per signal, also where there are as many signals as atoms; one dimension is per atom."""
    D, x, lam1 = random_dictionary(6, 9), signals(6, 9), torch.linspace(0, 1, 6).double()
    for constraint in NAMED_CONSTRAINTS:
        codes = torchscn.sparse_code(x, D, lam1[:, None], constraint=constraint, tol=1e-10)
        rows = [
            torchscn.sparse_code(row, D, float(own), constraint=constraint, tol=1e-10)
            for row, own in zip(x, lam1, strict=True)
        ]
        assert_close(codes, torch.stack(rows))
        per_atom = torchscn.sparse_code(x, D, lam1, constraint=constraint, tol=1e-10)
        assert_close(per_atom[3], torchscn.sparse_code(x[3], D, lam1, constraint=constraint, tol=1e-10))


def test_normal_form_with_threshold():
    D, x = random_dictionary(6, 9), signals(4, 9)
    codes = torchscn.nonneg_qp(x @ D.T, D @ D.T, constraint=Bounds(threshold=0.2), tol=1e-10)
    assert_close(codes, torchscn.sparse_code(x, D, 0.2, constraint="signed", tol=1e-10))


def test_start_from_codes(kernel):
    D, x, allowed = random_dictionary(12, 20), signals(9, 20), Bounds(-0.1, 0.1)
    exact = torchscn.sparse_code(x, D, 0.05, 0.1, constraint=allowed, tol=1e-12)
    for init in (exact, torch.full_like(exact, 1e30), torch.full_like(exact, math.nan)):
        codes = torchscn.sparse_code(x, D, 0.05, 0.1, constraint=allowed, tol=1e-9, init=init)
        assert_close(codes, exact, atol=1e-8, rtol=0)


@pytest.mark.parametrize("constraint", ["signed", "sum_to_one", Bounds(-0.1, 0.2)])
def test_only_the_bad_signal_is_lost(kernel, constraint):
    D, x = random_dictionary(6, 9), signals(70, 9)
    expected = torchscn.sparse_code(x, D, 0.1, constraint=constraint)
    x[3, 2], x[65, 0] = math.nan, math.inf
    solution = torchscn.solve(x, D, 0.1, constraint=constraint)
    bad = torch.zeros(70, dtype=torch.bool)
    bad[[3, 65]] = True
    assert solution.codes[bad].isnan().all()
    assert_close(solution.codes[~bad], expected[~bad])
    assert torch.equal(solution.converged, ~bad)


@pytest.mark.parametrize("constraint", ["signed", "sum_to_one", Bounds(-0.1, 0.2)])
@pytest.mark.parametrize(("n_signals", "n_atoms", "n_features"), [(0, 4, 5), (3, 1, 5), (3, 4, 1)])
def test_small_shapes(kernel, constraint, n_signals, n_atoms, n_features):
    D, x = random_dictionary(n_atoms, n_features), signals(n_signals, n_features)
    codes = torchscn.sparse_code(x, D, 0.1, 0.1, constraint=constraint)
    assert codes.shape == (n_signals, n_atoms)
    if n_signals:
        assert torchscn.kkt_residual(x, D, codes, 0.1, 0.1, constraint=constraint).max() < 1e-3


def test_tiny_dictionaries_and_zero_atoms(kernel):
    """Atoms whose energies underflow are scaled, bounds with them; a zero atom stays where it is allowed."""
    D, x = random_dictionary(5, 9).float(), signals(4, 9).float()
    expected = torchscn.sparse_code(x, D, constraint=Bounds(-0.5, 0.5), tol=1e-6)
    tiny = torchscn.sparse_code(x, D * 1e-25, constraint=Bounds(-0.5e25, 0.5e25), tol=1e-6)
    assert_close(tiny * 1e-25, expected, atol=1e-5, rtol=1e-4)
    D[2] = 0
    assert (torchscn.sparse_code(x, D, constraint=Bounds(0.25, 1))[:, 2] == 0.25).all()


def test_bad_constraints_are_refused():
    D, x = random_dictionary(5, 9), signals(4, 9)

    def code(constraint, lam1=0.0, **options):
        return torchscn.sparse_code(x, D, lam1, constraint=constraint, **options)

    with pytest.raises(ValueError, match="Did you mean 'signed'"):
        code("sined")
    with pytest.raises(TypeError, match=r"torchscn\.Bounds\(0, 1\); got tuple"):
        code((0, 1))
    with pytest.raises(ValueError, match="lower must not be above upper; atom 0 has 1 and 0"):
        code(Bounds(1, 0))
    with pytest.raises(ValueError, match="lower must be below infinity; got inf"):
        code(Bounds(math.inf, math.inf))
    with pytest.raises(ValueError, match="upper must be above -infinity; got nan"):
        code(Bounds(0, math.nan))
    with pytest.raises(ValueError, match=r"lower must be one number.*shape \(5,\).*got \(3,\)"):
        code(Bounds(torch.zeros(3).double()))
    with pytest.raises(TypeError, match=r"lower is torch\.float32"):
        code(Bounds(torch.zeros(5)))
    with pytest.raises(ValueError, match="total must be finite and above 0; got -1"):
        code(SumTo(-1))
    with pytest.raises(ValueError, match=r"total must be one number or one per signal, shape \(4, 1\)"):
        code(SumTo(torch.ones(4).double()))
    with pytest.raises(ValueError, match="for codes may be negative; got -1"):
        code("signed", torch.tensor(-1.0).double())
    with pytest.raises(ValueError, match="one at a time; use solver='auto'"):
        code("sum_to_one", solver="coordinate")
    with pytest.raises(ValueError, match=r"lam1 must be .*one per signal"):
        code("signed", torch.ones(4, 3).double())


def test_lists_arrays_and_integers_are_taken():
    D, x = random_dictionary(3, 9), signals(4, 9)
    expected = torchscn.sparse_code(x, D, constraint=Bounds(0.0, torch.tensor([1.0, 2.0, 3.0]).double()))
    for upper in ([1, 2, 3], np.array([1, 2, 3]), np.array([1.0, 2.0, 3.0], dtype=np.float32), torch.tensor([1, 2, 3])):
        assert_close(torchscn.sparse_code(x, D, constraint=Bounds(0, upper)), expected)


@pytest.mark.parametrize("constraint", sorted(NAMED_CONSTRAINTS))
def test_layers(constraint):
    torch.manual_seed(0)
    layer = torchscn.SparseCoding2d(2, 6, constraint=constraint, lam1=0.1, tol=1e-6)
    x = torch.randn(2, 2, 8, 8)
    codes = layer(x)
    patches = torch.nn.functional.unfold(x, 3, padding=1).mT
    expected = torchscn.sparse_code(patches, layer.dictionary.flatten(1), 0.1, layer.lam2, constraint=constraint)
    assert_close(codes.flatten(2).mT, expected, atol=1e-3, rtol=1e-3)
    assert layer.solve(x).converged.all()
    codes.sum().backward()
    assert layer.dictionary.grad.isfinite().all()
    with torch.no_grad():
        scale, offset = torch.rand(6), torch.rand(6)
        fused = layer.infer(x, scale, offset)
        assert_close(fused, codes * scale[:, None, None] + offset[:, None, None], atol=1e-4, rtol=1e-4)
    assert (f"constraint={constraint!r}" in repr(layer)) == (constraint != "non_negative")
    with pytest.raises(ValueError, match="constraint"):
        torchscn.SparseCoding2d(2, 6, constraint="none")


def test_constraints_are_recreated_from_their_tensors():
    rhs, gram = signals(4, 5), torch.eye(5).double()
    for constraint in (Bounds(-1, torch.ones(4, 5).double()), SumTo(2.0)):
        fitted = constraint.fit(rhs, gram)
        again = CONSTRAINTS[fitted.kind](*fitted.tensors())
        assert all(torch.equal(a, b) for a, b in zip(again.tensors(), fitted.tensors(), strict=True))
        some = fitted.take(torch.tensor([1, 3]))
        assert_close(some.project(rhs[[1, 3]]), fitted.project(rhs)[[1, 3]])


def test_zero_atom_between_bounds_that_exclude_zero(kernel):
    """The others are so small that everything is scaled; the code of the zero atom is, too."""
    D = torch.tensor([[0.0], [1e-4]]).double()
    bounds = Bounds(torch.tensor([1.0, -1e9]).double(), torch.tensor([2.0, 1e9]).double())
    codes = torchscn.sparse_code(torch.ones(1, 1).double(), D, constraint=bounds)
    assert_close(codes, torch.tensor([[1.0, 1e4]]).double())


def test_codes_stay_between_bounds_that_underflow(kernel):
    x, D = torch.full((1, 2), -1e20), torch.eye(2) * 1e-18
    assert (torchscn.sparse_code(x, D, constraint=Bounds(-1e-7, 1e-7)) >= -1e-7).all()
    solution = torchscn.solve(torch.full((1, 2), -1e16), torch.eye(2), constraint=Bounds(-0.1, 0.1), solver="fista")
    assert_close(solution.codes, torch.full((1, 2), -0.1))


def test_sum_tells_nearly_equal_atoms_apart(kernel):
    """Their difference is lost in the Gram matrix, but not in the right-hand side."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        D = torch.randn(3, 4, generator=generator, dtype=torch.float64)
        x = torch.randn(1, 4, generator=generator, dtype=torch.float64)
        D[2] = D[0] + 1e-7 * torch.randn(4, generator=generator, dtype=torch.float64)
        solution = torchscn.solve(x, D, constraint=SumTo(2.5))
        found, swapped = (torchscn.objective(x, D, codes) for codes in (solution.codes, solution.codes[:, [2, 1, 0]]))
        assert solution.converged.all()
        assert found <= swapped * (1 + 1e-12)


def test_sum_over_a_dictionary_that_underflows(kernel):
    x, D = torch.tensor([[0.6, 0.4]]) * 1e-22, torch.eye(2) * 1e-22
    assert_close(torchscn.sparse_code(x, D, constraint="sum_to_one"), torch.tensor([[0.6, 0.4]]))


@pytest.mark.skipif(KERNELS[0] == "torch", reason="plain torch takes the gradient of a rounding-level ridge")
@pytest.mark.parametrize("lam1", [0.0, 0.1])
def test_gradient_with_duplicate_atoms_is_moderate(lam1):
    D = random_dictionary(5, 7)
    D[1] = D[0]
    D.requires_grad_()
    torchscn.sparse_code(signals(4, 7), D, lam1, constraint="signed").square().sum().backward()
    assert D.grad.abs().max() < 100


def test_what_bounds_force_is_not_cancellation(kernel):
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        D, x = (torch.randn(n, 1, generator=generator, dtype=torch.float64) for n in (3, 2))
        lower, upper = torch.randn(2, 2, 3, generator=generator, dtype=torch.float64).sort(0).values
        assert torchscn.solve(x, D, 0.1, constraint=Bounds(lower, upper)).converged.all()


def test_bounds_under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        upper = torch.randn(4, 5).abs().bfloat16()  # not from a layer: some processors cannot multiply such numbers
        codes = torchscn.sparse_code(torch.randn(4, 7), torch.randn(5, 7), constraint=Bounds(0, upper))
    assert codes.dtype == torch.float32
    assert (codes <= upper.float()).all()


def test_gradient_of_a_bad_signal_is_not_everyones():
    x, total = signals(4, 9), torch.ones((), dtype=torch.float64, requires_grad=True)
    x[1, 0] = math.nan
    torchscn.sparse_code(x, random_dictionary(5, 9), constraint=SumTo(total))[[0, 2, 3]].square().sum().backward()
    assert total.grad.isfinite()


def test_fista_judges_what_codes_contribute():
    """An atom of norm 1e6 with a small code, beside one of norm 1 with a large one."""
    D = torch.tensor([[1e6, 0.0, 0.0], [0.0, 1.0, 0.3], [0.0, 0.2, 1.0]]).double()
    x = torch.tensor([[0.5, 0.6, 0.4]]).double()
    solution = torchscn.solve(x, D, constraint="sum_to_one", solver="fista", tol=1e-8)
    exact = torchscn.solve(x, D, constraint="sum_to_one")
    gap = torchscn.objective(x, D, solution.codes) - torchscn.objective(x, D, exact.codes)
    assert exact.converged.all()
    assert not solution.converged.any() or gap < 1e-9
