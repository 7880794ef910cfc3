"""Errors say what was expected, what came and what to do."""

import pytest
import torch

import torchscn
from torchscn import SparseCoding, SparseCoding1d, SparseCoding2d, nonneg_qp, solve, sparse_code

x, D = torch.randn(4, 6), torch.randn(5, 6)


@pytest.mark.parametrize("function", [sparse_code, solve])
@pytest.mark.parametrize(
    ("args", "options", "error", "words"),
    [
        ((x[:, :5], D), {}, ValueError, ["5 features", "have 6", "(4, 5)", "transpose"]),
        ((x, D[0]), {}, ValueError, ["(n_atoms, n_features)", "(6,)"]),
        ((x, D[:0]), {}, ValueError, ["(n_atoms, n_features)", "(0, 6)"]),
        ((x[0, 0], D), {}, ValueError, ["no features"]),
        ((x.long(), D), {}, TypeError, ["x must be float32 or float64", "int64", ".float()"]),
        ((x.half(), D), {}, TypeError, ["float16", "autocast"]),
        ((x.double(), D), {}, TypeError, ["float64", "float32", "x.to(dictionary.dtype)"]),
        ((x.numpy(), D), {}, TypeError, ["torch.Tensor", "ndarray", "as_tensor"]),
        ((x.to("meta"), D), {}, ValueError, ["meta", "cpu"]),
        ((x, D, -0.1), {}, ValueError, ["lam1", "-0.1"]),
        ((x, D, 0.1, -1), {}, ValueError, ["lam2", "-1"]),
        ((x, D, float("nan")), {}, ValueError, ["lam1", "nan"]),
        ((x, D, "0.1"), {}, TypeError, ["lam1", "str"]),
        ((x, D, torch.ones(3)), {}, ValueError, ["lam1", "(5,)", "(3,)"]),
        ((x, D, torch.ones(5).double()), {}, TypeError, ["lam1", "float64"]),
        ((x, D, 0.1, torch.ones(5)), {}, ValueError, ["lam2", "single number"]),
        ((x, D), {"solver": "fsta"}, ValueError, ["'fsta'", "'coordinate'", "Did you mean 'fista'?"]),
        ((x, D), {"solver": None}, ValueError, ["solver=None"]),
        ((x, D), {"tol": -1e-3}, ValueError, ["tol", "-0.001"]),
        ((x, D), {"tol": float("inf")}, ValueError, ["tol", "inf"]),
        ((x, D), {"max_iter": 0}, ValueError, ["max_iter", "at least 1"]),
        ((x, D), {"max_iter": 2.5}, TypeError, ["max_iter", "whole number", "2.5"]),
        ((x, D), {"max_iter": True}, TypeError, ["max_iter", "True"]),
        ((x, D), {"init": torch.zeros(4, 6)}, ValueError, ["init", "(4, 5)", "(4, 6)"]),
        ((x, D), {"max_iters": 1}, TypeError, ["max_iters"]),
    ],
)
def test_functions(function, args, options, error, words):
    with pytest.raises(error) as caught:
        function(*args, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_gradient_rules():
    with pytest.raises(ValueError, match="solver='fista'"):
        sparse_code(x, D, solver="coordinate", grad="unrolled")
    with pytest.raises(ValueError, match="Did you mean 'implicit'"):
        sparse_code(x, D, grad="implict")


def test_normal_form():
    with pytest.raises(ValueError, match=r"gram \(6, 6\) and rhs \(4, 5\)"):
        nonneg_qp(torch.randn(4, 5), torch.eye(6))
    with pytest.raises(TypeError, match="rhs must be float32"):
        nonneg_qp(torch.ones(4, 5, dtype=torch.int32), torch.eye(5))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: SparseCoding2d(3, 0), ValueError, ["n_atoms", "0"]),
        (lambda: SparseCoding2d(0, 3), ValueError, ["in_channels"]),
        (lambda: SparseCoding(2.5, 3), TypeError, ["in_features"]),
        (lambda: SparseCoding2d(3, 4, kernel_size=2), ValueError, ["even", "padding"]),
        (lambda: SparseCoding2d(3, 4, kernel_size=(3, 3, 3)), ValueError, ["kernel_size", "2"]),
        (lambda: SparseCoding2d(3, 4, stride=0), ValueError, ["stride"]),
        (lambda: SparseCoding2d(3, 4, padding=-1), ValueError, ["padding"]),
        (lambda: SparseCoding2d(3, 4, lam1=-1.0), ValueError, ["lam1"]),
        (lambda: SparseCoding2d(3, 4, lam2=-1.0), ValueError, ["lam2"]),
        (lambda: SparseCoding2d(3, 4, solver="coordinat"), ValueError, ["Did you mean 'coordinate'"]),
        (lambda: SparseCoding2d(3, 4, grad="unrolled"), ValueError, ["fista"]),
        (lambda: SparseCoding2d(3, 4, dtype=torch.int64), TypeError, ["int64"]),
        (
            lambda: SparseCoding2d(3, 4)(torch.randn(2, 4, 8, 8)),
            ValueError,
            ["(batch, 3, height, width)", "(2, 4, 8, 8)"],
        ),
        (lambda: SparseCoding2d(3, 4)(torch.randn(8, 8)), ValueError, ["(8, 8)"]),
        (lambda: SparseCoding2d(3, 4, padding=0)(torch.randn(1, 3, 2, 8)), ValueError, ["smaller than one patch"]),
        (lambda: SparseCoding2d(3, 4)(torch.ones(1, 3, 8, 8).long()), TypeError, ["float32 or float64", "int64"]),
        (lambda: SparseCoding2d(3, 4)([1.0]), TypeError, ["torch.Tensor", "list"]),
        (lambda: SparseCoding1d(3, 4).solve(torch.randn(1, 2, 8)), ValueError, ["(batch, 3, length)"]),
        (lambda: SparseCoding(3, 4)(torch.randn(2, 4)), ValueError, ["4 features", "have 3"]),
    ],
)
def test_layers(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_kernel_choice(monkeypatch):
    monkeypatch.setenv("TORCHSCN_KERNEL", "avx1024")
    with pytest.raises(ValueError, match=r"avx1024.*generic"):
        sparse_code(x, D)


def test_missing_kernel(monkeypatch):
    monkeypatch.setattr("torchscn.kernels.loader._library", lambda: None)
    monkeypatch.setenv("TORCHSCN_KERNEL", "avx2")
    with pytest.raises(RuntimeError, match=r"no C\+\+ compiler.*Available: torch"):
        sparse_code(x, D)
    monkeypatch.setenv("TORCHSCN_KERNEL", "auto")
    assert torchscn.kernels.active_kernel() == "torch"
    assert sparse_code(x, D).shape == (4, 5)
