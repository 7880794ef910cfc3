"""Gradients: finite differences, implicit and unrolled agree; compilers and exporters accept the operator."""

from functools import partial

import pytest
import torch
from problems import duplicate_dictionary, random_dictionary, signals, support_margin
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import functional_call
from torch.testing import assert_close

import torchscn

SOLVERS = torchscn.list_solvers()


def problem(n_signals=4, n_atoms=9, n_features=12):
    """Leaves for gradcheck, far from any change of support."""
    x, D = signals(n_signals, n_features, seed=3), random_dictionary(n_atoms, n_features, seed=3)
    lam1 = torch.linspace(0.05, 0.2, n_atoms, dtype=torch.float64)
    lam2 = torch.tensor(0.05, dtype=torch.float64)
    codes = torchscn.sparse_code(x, D, lam1, lam2, solver="active_set")
    assert support_margin(x, D, codes, lam1, lam2.item()) > 1e-3
    return tuple(t.requires_grad_() for t in (x, D, lam1, lam2))


@pytest.mark.parametrize("solver", SOLVERS)
def test_gradcheck_dense(solver, kernel):
    assert gradcheck(partial(torchscn.sparse_code, solver=solver, tol=1e-12), problem())


def test_gradcheck_tied_lam1():
    x, D, _, lam2 = problem()
    lam1 = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    assert gradcheck(partial(torchscn.sparse_code, tol=1e-12), (x, D, lam1, lam2))


def test_gradcheck_normal_form_with_any_gram():
    D = random_dictionary(5, 12)
    gram = (D @ D.T).requires_grad_()
    rhs = signals(3, 5).requires_grad_()
    assert gradcheck(partial(torchscn.nonneg_qp, tol=1e-12), (rhs, gram))


@pytest.mark.parametrize("solver", SOLVERS)
def test_double_backward(solver):
    assert gradgradcheck(partial(torchscn.sparse_code, solver=solver, tol=1e-13), problem(2, 5, 8))


def grads(**options):
    leaves = problem(6, 20, 24)
    codes = torchscn.sparse_code(*leaves, **options)
    weights = torch.linspace(-1, 1, codes.numel(), dtype=torch.float64).view_as(codes)
    return codes, torch.autograd.grad((codes * weights).sum(), leaves)


@pytest.mark.parametrize("solver", SOLVERS)
def test_implicit_equals_unrolled(solver):
    codes, implicit = grads(solver=solver, tol=1e-13)
    unrolled_codes, unrolled = grads(solver="fista", tol=0, max_iter=3000, grad="unrolled")
    assert_close(codes, unrolled_codes, atol=1e-9, rtol=0)
    for ours, theirs in zip(implicit, unrolled, strict=True):
        assert_close(ours, theirs, atol=1e-8, rtol=0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_duplicate_atoms_have_a_finite_gradient(solver):
    D = duplicate_dictionary(8, 12).requires_grad_()
    x = signals(5, 12).requires_grad_()
    codes = torchscn.sparse_code(x, D, 0.01, 0.0, solver=solver)
    codes.square().sum().backward()
    assert x.grad.isfinite().all()
    assert D.grad.isfinite().all()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("lam2", [0.0, 1e-2])
def test_zero_atom_has_zero_gradient(solver, lam2, kernel):
    D = random_dictionary(8, 12)
    D[3] = 0
    D.requires_grad_()
    codes = torchscn.sparse_code(signals(5, 12), D, 0.0, lam2, solver=solver)
    codes.sum().backward()
    assert D.grad[3].count_nonzero() == 0
    assert D.grad.isfinite().all()


def test_bad_signal_spoils_only_its_own_gradient(kernel):
    D, x = random_dictionary(8, 12), signals(70, 12)
    clean = x.clone().requires_grad_()
    torchscn.sparse_code(clean, D, 0.1, 1e-2, tol=1e-9).sum().backward()
    x[5, 0] = torch.nan
    x.requires_grad_()
    others = torch.arange(70) != 5
    torchscn.sparse_code(x, D, 0.1, 1e-2, tol=1e-9)[others].sum().backward()
    assert_close(x.grad[others], clean.grad[others])


def test_memory_does_not_grow_with_iterations():
    saved = {}
    for max_iter in (10, 1000):
        sizes = []
        x, D, lam1, lam2 = problem(50)
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            torchscn.sparse_code(x, D, lam1, lam2, solver="fista", tol=0, max_iter=max_iter)
        saved[max_iter] = sum(sizes)
    assert saved[10] == saved[1000]


@pytest.mark.parametrize("learned", ["x", "dictionary", "lam1"])
def test_only_asked_gradients_are_needed(learned):
    leaves = dict(zip(("x", "dictionary", "lam1"), (t.detach() for t in problem()), strict=False))
    leaves[learned].requires_grad_()
    torchscn.sparse_code(**leaves, lam2=0.05).sum().backward()
    assert leaves[learned].grad.isfinite().all()


def test_operator_passes_torch_library_checks():
    D = random_dictionary(5, 12)
    rhs = signals(3, 5).requires_grad_()
    gram = (D @ D.T).requires_grad_()
    shift = torch.full((5,), 0.01, dtype=torch.float64).requires_grad_()
    torch.library.opcheck(
        torch.ops.torchscn.solve.default,
        (rhs, gram, shift, None, "non_negative", None, None, None, "coordinate", 1e-10, None, "signal"),
    )
    torch.library.opcheck(
        torch.ops.torchscn.solve.default,
        (rhs, gram, None, None, "on_support", rhs.detach(), None, None, "coordinate", 1e-10, None, "signal"),
    )


@pytest.mark.parametrize("grad", ["implicit", "unrolled"])
def test_compiles_to_one_graph(grad):
    layer = torchscn.SparseCoding2d(3, 6, solver="fista", tol=0, max_iter=20, grad=grad)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    expected = layer(x)
    assert_close(compiled(x), expected)
    (ours,) = torch.autograd.grad(compiled(x).square().sum(), x)
    (theirs,) = torch.autograd.grad(expected.square().sum(), x)
    assert_close(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer", [torchscn.SparseCoding2d(3, 6), torchscn.SparseCoding1d(3, 6), torchscn.SparseCoding(3, 6)]
)
def test_compiles_with_inductor(layer):
    x = torch.randn(*{4: (2, 3, 8, 8), 3: (2, 3, 8), 2: (5, 3)}[layer.dictionary.dim()])
    assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))


def test_exports():
    layer = torchscn.SparseCoding2d(3, 6).eval()
    x = torch.randn(2, 3, 8, 8)
    program = torch.export.export(layer, (x,))
    assert_close(program.module()(x), layer(x))


def test_autocast_computes_in_float32():
    D, x = random_dictionary(8, 12).float(), signals(5, 12).float()
    expected = torchscn.sparse_code(x.bfloat16().float(), D, 0.1, 1e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        codes = torchscn.sparse_code(x.bfloat16(), D, 0.1, 1e-2)
        assert torchscn.SparseCoding2d(3, 4)(torch.randn(1, 3, 6, 6).bfloat16()).dtype == torch.float32
    assert codes.dtype == torch.float32
    assert_close(codes, expected)


@pytest.mark.parametrize("solver", SOLVERS)
def test_forward_mode(solver, kernel):
    code = partial(torchscn.sparse_code, solver=solver, tol=1e-12)
    assert gradcheck(code, problem(), check_forward_ad=True, check_backward_ad=False)


def test_forward_over_reverse():
    code = partial(torchscn.sparse_code, tol=1e-13)
    assert gradgradcheck(code, problem(2, 5, 8), check_fwd_over_rev=True)


def test_forward_mode_of_the_normal_form():
    D = random_dictionary(5, 12)
    leaves = (signals(3, 5).requires_grad_(), (D @ D.T).requires_grad_())
    assert gradcheck(partial(torchscn.nonneg_qp, tol=1e-12), leaves, check_forward_ad=True)


def test_function_transforms_agree_with_autograd():
    x, D, lam1, lam2 = (leaf.detach() for leaf in problem())
    leaf = D.clone().requires_grad_()

    def loss(dictionary, signal=x):
        return torchscn.sparse_code(signal, dictionary, lam1, lam2, tol=1e-12).square().sum()

    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    assert_close(torch.func.grad(loss)(D), expected)
    assert_close(torch.func.jacfwd(loss)(D), expected)
    assert_close(torch.func.jacrev(loss)(D), expected)
    per_signal = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(D, x)
    assert_close(per_signal.sum(0), expected)
    hessian = torch.func.hessian(loss)(D).reshape(D.numel(), -1)
    assert_close(hessian, torch.autograd.functional.hessian(loss, D).reshape(D.numel(), -1), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("which", range(4))
def test_vmap_over_any_argument(which):
    leaves = [leaf.detach() for leaf in problem()]
    code = partial(torchscn.sparse_code, tol=1e-12)
    both = torch.stack([leaves[which], 1.1 * leaves[which]])
    in_dims = tuple(0 if i == which else None for i in range(4))
    mapped = torch.func.vmap(code, in_dims)(*leaves[:which], both, *leaves[which + 1 :])
    one_by_one = [code(*leaves[:which], value, *leaves[which + 1 :]) for value in both]
    assert_close(mapped, torch.stack(one_by_one))


LAYERS = [
    (torchscn.SparseCoding2d(2, 5, lam1=0.05, lam2=0.05, tol=1e-12, dtype=torch.float64), (2, 6, 6)),
    (torchscn.SparseCoding1d(2, 5, lam1=0.05, lam2=0.05, tol=1e-12, dtype=torch.float64), (2, 9)),
    (torchscn.SparseCoding(4, 5, lam1=0.05, lam2=0.05, tol=1e-12, dtype=torch.float64), (4,)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS)
@pytest.mark.parametrize("batched", [False, True])
def test_gradients_per_sample(layer, shape, batched):
    x = torch.randn(3, *shape, dtype=torch.float64)
    parameters = {name: value.detach() for name, value in layer.named_parameters()}

    def loss(parameters, signal):
        return functional_call(layer, parameters, (signal[None] if batched else signal,)).square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    expected = torch.autograd.grad(layer(x).square().sum(), layer.parameters())
    for ours, theirs in zip(per_sample.values(), expected, strict=True):
        assert_close(ours.sum(0), theirs)


@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_layers_in_forward_mode(layer, shape):
    x = torch.randn(2, *shape, dtype=torch.float64)
    _, tangent = torch.func.jvp(layer, (x,), (torch.ones_like(x),))
    assert_close(tangent, (layer(x + 1e-6) - layer(x - 1e-6)) / 2e-6, atol=1e-6, rtol=1e-6)
    with forward_ad.dual_level(), torch.no_grad():
        dual = layer(forward_ad.make_dual(x, torch.ones_like(x)))
        assert_close(forward_ad.unpack_dual(dual).tangent, tangent)


def test_a_network_without_gradients_keeps_its_tangents():
    """Evaluation in one pass would lose them."""
    model = torchscn.create_model("scn1", stem=4, tol=1e-10).double().eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    _, expected = torch.func.jvp(model, (x,), (torch.ones_like(x),))
    with forward_ad.dual_level(), torch.no_grad():
        dual = model(forward_ad.make_dual(x, torch.ones_like(x)))
        assert_close(forward_ad.unpack_dual(dual).tangent, expected)


@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_exports_with_a_dynamic_batch(layer, shape):
    batch = torch.export.Dim("batch")
    x = torch.randn(4, *shape, dtype=torch.float64)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: batch},))
    more = torch.randn(7, *shape, dtype=torch.float64)
    assert_close(program.module()(more), layer(more))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_traces():
    layer = torchscn.SparseCoding2d(3, 6, tol=1e-6).eval()
    x, other = torch.randn(2, 2, 3, 8, 8).unbind()
    with torch.no_grad():
        traced = torch.jit.trace(layer, x)
        assert_close(traced(other), layer(other))


def test_shapes_on_the_meta_device():
    with torch.device("meta"):
        model = torchscn.create_model("scn1")
    assert model(torch.randn(2, 3, 8, 8, device="meta")).shape == (2, 10)


def test_forward_mode_twice_is_refused():
    x, D, lam1, lam2 = (leaf.detach() for leaf in problem())

    def tangent(function):
        return lambda value: torch.func.jvp(function, (value,), (torch.ones_like(value),))[1]

    def total(lam2):
        return torchscn.sparse_code(x, D, lam1, lam2, tol=1e-12).sum()

    with pytest.raises(RuntimeError, match="use reverse mode for one of the two"):
        tangent(tangent(total))(lam2)
    torch.func.hessian(total)(lam2)


def test_vmap_over_nothing():
    D = random_dictionary(5, 12)
    codes = torch.func.vmap(lambda x: torchscn.sparse_code(x, D, 0.1))(torch.zeros(0, 3, 12, dtype=torch.float64))
    assert codes.shape == (0, 3, 5)


def test_batched_gradients():
    D, x = random_dictionary(5, 12), signals(3, 12).requires_grad_()
    code = partial(torchscn.sparse_code, dictionary=D, lam1=0.1, lam2=0.1, tol=1e-12)
    assert gradcheck(code, (x,), check_batched_grad=True)
    jacobian = torch.autograd.functional.jacobian
    assert_close(jacobian(code, x, vectorize=True), jacobian(code, x))
