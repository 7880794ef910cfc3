"""The functions: errors that say what was expected, what came and what to do; what a solution shows of itself."""

import pytest
import torch

from torchscn import nonneg_qp, solve, sparse_code

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


def test_a_solution_prints_as_a_few_lines():
    text = repr(solve(torch.randn(1000, 6), D, 0.1, 0.1))
    assert len(text.splitlines()) <= 3
    assert "codes (1000, 5) float32" in text
    assert "1,000 of 1,000 converged" in text
    assert "0 of 0 converged" in repr(solve(torch.randn(0, 6), D, 0.1))


def test_an_edit_through_data_is_seen():
    """Nothing about a dictionary is remembered between calls."""
    dictionary = torch.eye(3)
    signal = torch.tensor([1.0, 2.0, 3.0])
    assert sparse_code(signal, dictionary, tol=1e-6).tolist() == [1.0, 2.0, 3.0]
    dictionary.data.mul_(2)
    assert sparse_code(signal, dictionary, tol=1e-6).tolist() == [0.5, 1.0, 1.5]
