"""``nnls`` against scipy's, in its own test problems and in batches, and its derivatives against differences."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.optimize.tests.test_nnls as scipy_tests
import torch
from torch.testing import assert_close

import torchscn
from torchscn import nnls

DIFFERENT = {
    "test_atol_deprecation_warning",  # an argument that scipy wants to get rid of
    "test_2D_singleton_RHS_input",  # one column gives one column
    "test_2D_not_singleton_RHS_input_2",  # several right-hand sides are what this is for
}
SCIPY_TESTS = sorted(name for name in dir(scipy_tests.TestNNLS) if name.startswith("test") and name not in DIFFERENT)


@pytest.mark.parametrize("name", SCIPY_TESTS)
def test_problems_of_scipy(name, monkeypatch):
    monkeypatch.setattr(scipy_tests, "nnls", nnls)
    problems = scipy_tests.TestNNLS()
    problems.setup_method()
    getattr(problems, name)()


def matrix_of_condition(condition: float, n_rows: int, n_columns: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(n_rows, n_columns)))[0]
    right = np.linalg.qr(rng.normal(size=(n_columns, n_columns)))[0]
    return left * np.geomspace(1, 1 / condition, n_columns) @ right.T


def oracle(A, b):
    """scipy's answer with more iterations than it takes by default."""
    return scipy.optimize.nnls(A, b, maxiter=100 * A.shape[1])


@pytest.mark.parametrize("noise", [0.0, 1e-2])
@pytest.mark.parametrize("condition", [1, 1e2, 1e4, 1e6, 1e8, 1e10])
def test_equals_scipy_for_every_condition(condition, noise):
    rng = np.random.default_rng(1)
    A = matrix_of_condition(condition, 40, 15)
    b = A @ np.maximum(rng.normal(size=(15, 12)), 0) + noise * rng.normal(size=(40, 12))
    x, rnorm = nnls(A, b)
    own_x, own_rnorm = nnls(np.broadcast_to(A, (12, 40, 15)), b.T)
    for i in range(12):
        wanted, least = oracle(A, b[:, i])
        size = np.linalg.norm(b[:, i])
        for found, misfit in ((x[:, i], rnorm[i]), (own_x[i], own_rnorm[i])):
            assert found.min() >= 0
            assert misfit <= least + 1e-11 * size
            assert np.linalg.norm(found - wanted) <= 1e-14 * condition * np.linalg.norm(wanted) + 1e-13


@pytest.mark.parametrize(
    ("A", "b", "x"),
    [
        ((7, 3), (7,), (3,)),
        ((7, 3), (7, 4), (3, 4)),
        ((7, 3), (5, 7, 4), (5, 3, 4)),
        ((5, 7, 3), (5, 7), (5, 3)),
        ((5, 7, 3), (5, 7, 2), (5, 3, 2)),
        ((5, 7, 3), (7, 2), (5, 3, 2)),
        ((2, 1, 7, 3), (5, 7, 2), (2, 5, 3, 2)),
        ((3, 7), (3,), (7,)),
        ((5, 3, 7), (5, 3), (5, 7)),
        ((7, 1), (7,), (1,)),
        ((1, 4), (1,), (4,)),
        ((7, 3), (7, 0), (3, 0)),
        ((0, 7, 3), (0, 7), (0, 3)),
    ],
)
def test_shapes(A, b, x):
    rng = np.random.default_rng(2)
    matrix, sides = rng.normal(size=A), rng.normal(size=b)
    found, rnorm = nnls(matrix, sides)
    assert found.shape == x
    is_vector = len(b) == 1 or b == A[:-1]
    assert np.shape(rnorm) == (x[:-1] if is_vector else (*x[:-2], x[-1]))
    columns = sides[..., None] if is_vector else sides
    answers = found[..., None] if is_vector else found
    for place in np.ndindex(*answers.shape[:-2], answers.shape[-1]):
        one = np.broadcast_to(matrix, (*answers.shape[:-2], *A[-2:]))[place[:-1]]
        side = np.broadcast_to(columns, (*answers.shape[:-2], *columns.shape[-2:]))[
            (*place[:-1], slice(None), place[-1])
        ]
        np.testing.assert_allclose(np.linalg.norm(one @ answers[(*place[:-1], slice(None), place[-1])] - side),
                                   oracle(one, side)[1], atol=1e-12)  # fmt: skip


def test_many_signals_take_the_kernel_and_agree():
    rng = np.random.default_rng(3)
    A = np.abs(rng.normal(size=(30, 8)))
    b = A @ np.maximum(rng.normal(size=(8, 500)), 0) + 0.1 * rng.normal(size=(30, 500))
    x, rnorm = nnls(A, b)
    for i in range(0, 500, 25):
        wanted, least = oracle(A, b[:, i])
        np.testing.assert_allclose(x[:, i], wanted, atol=1e-12)
        assert rnorm[i] == pytest.approx(least, abs=1e-12)


def test_columns_of_very_different_size():
    rng = np.random.default_rng(4)
    A = rng.normal(size=(20, 6)) * np.geomspace(1e-120, 1e120, 6)
    x = np.array([1.0, 0, 2, 0, 3, 1]) / np.geomspace(1e-120, 1e120, 6)
    found, rnorm = nnls(A, A @ x)
    np.testing.assert_allclose(found, x, rtol=1e-10)
    assert rnorm < 1e-12


def test_numbers_as_people_have_them():
    A, b = [[1, 0], [1, 0], [0, 1]], [2, 1, 1]
    x, rnorm = nnls(A, b)
    assert x.dtype == np.float64
    assert isinstance(rnorm, float)
    assert x.tolist() == pytest.approx([1.5, 1.0])
    assert nnls(np.float32(A), np.float32(b))[0].dtype == np.float32
    for tensors in ((torch.tensor(A).float(), torch.tensor(b).float()), (torch.tensor(A).float(), np.float32(b))):
        found, misfit = nnls(*tensors)
        assert found.dtype == torch.float32
        assert misfit.shape == ()
        assert_close(found, torch.tensor([1.5, 1.0]))


def test_nan_stays_with_its_problem():
    rng = np.random.default_rng(5)
    A, b = rng.normal(size=(6, 3)), rng.normal(size=(6, 4))
    clean, _ = nnls(A, b)
    b[2, 1], b[0, 3] = np.nan, np.inf
    x, rnorm = nnls(A, b)
    assert np.isnan(x[:, [1, 3]]).all()
    assert np.isnan(rnorm[[1, 3]]).all()
    np.testing.assert_array_equal(x[:, [0, 2]], clean[:, [0, 2]])
    matrices = rng.normal(size=(3, 6, 3))
    matrices[1, 0, 0] = np.nan
    own, _ = nnls(matrices, rng.normal(size=(3, 6)))
    assert np.isnan(own).all(-1).tolist() == [False, True, False]


def test_zero_columns_and_dependent_columns():
    A = np.array([[1.0, 0, 1, 2], [0, 0, 0, 0], [1, 0, 1, 2]])
    x, rnorm = nnls(A, np.array([3.0, 1, 3]))
    assert x[1] == 0
    assert rnorm == pytest.approx(1)
    assert (x > 0).sum() == 1  # one of the dependent columns is enough


def random_tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("shapes", [((6, 3), (6,)), ((6, 3), (6, 4)), ((2, 6, 3), (2, 6)), ((2, 6, 3), (2, 6, 2))])
def test_derivatives(shapes):
    A, b = random_tensors(*shapes)
    assert (nnls(A, b)[0] > 0).any()
    assert torch.autograd.gradcheck(nnls, (A, b), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(nnls, (A, b))


def test_transforms():
    A, b = (tensor.detach() for tensor in random_tensors((4, 6, 3), (4, 6)))
    together, misfits = nnls(A, b)
    mapped, mapped_misfits = torch.func.vmap(nnls)(A, b)
    assert_close(mapped, together)
    assert_close(mapped_misfits, misfits)
    assert_close(torch.func.vmap(nnls, in_dims=(None, 0))(A[0], b)[0], nnls(A[0], b.mT)[0].mT)

    def misfit(matrix, side):
        return nnls(matrix, side)[1]

    by_vmap = torch.func.vmap(torch.func.grad(misfit))(A, b)
    for i in range(4):
        assert_close(by_vmap[i], torch.func.grad(misfit)(A[i], b[i]))
        one, side = A[i].clone().requires_grad_(), b[i]
        (wanted,) = torch.autograd.grad(misfit(one, side), one)
        assert_close(by_vmap[i], wanted)
    jacobian = torch.func.jacfwd(lambda side: nnls(A[0], side)[0])(b[0])
    assert_close(jacobian, torch.func.jacrev(lambda side: nnls(A[0], side)[0])(b[0]))


def test_gradients_stay_finite_for_dependent_columns():
    A = torch.ones(5, 3, dtype=torch.float64, requires_grad=True)
    x, _ = nnls(A, torch.ones(5, dtype=torch.float64))
    x.sum().backward()
    assert torch.isfinite(A.grad).all()


@pytest.mark.parametrize(
    ("A", "b", "message"),
    [
        (np.ones((3, 5)), np.ones(5), "A has 3 rows but b has 5.*transpose"),
        (np.ones((3, 5)), np.ones((4, 3)), "Right-hand sides are columns"),
        (np.ones((3, 5)), np.ones(4), r"\(A \(3, 5\), b \(4,\)\)"),
        (np.ones(3), np.ones(3), "at least one row and one column"),
        (np.ones((3, 0)), np.ones(3), "at least one row and one column"),
        (np.ones((3, 5)), np.float64(1), "b must be a vector"),
        (np.ones((2, 3, 5)), np.ones((4, 3, 1)), "do not go together"),
    ],
)
def test_wrong_shapes(A, b, message):
    with pytest.raises(ValueError, match=message):
        nnls(A, b)


@pytest.mark.parametrize("bad", [np.ones((3, 2)) * 1j, np.array([["a"]]), torch.ones(3, 2, dtype=torch.complex64)])
def test_other_kinds_of_numbers(bad):
    with pytest.raises(TypeError, match="A must hold real numbers"):
        nnls(bad, np.ones(3))


def test_too_few_iterations():
    rng = np.random.default_rng(7)
    with pytest.raises(RuntimeError, match="within 1 iterations"):
        nnls(rng.normal(size=(3, 8, 6)), rng.normal(size=(3, 8)), maxiter=1)
    with pytest.raises(ValueError, match="maxiter"):
        nnls(np.eye(2), np.ones(2), maxiter=0)
    with pytest.raises(TypeError, match="maxiter"):
        nnls(np.eye(2), np.ones(2), maxiter=1.5)


def test_is_public():
    assert torchscn.nnls is nnls
    assert math.isclose(torchscn.nnls(np.eye(2), np.array([3.0, 4]))[1], 0, abs_tol=1e-15)


def test_exactly_dependent_columns():
    rng = np.random.default_rng(8)
    A = rng.integers(-1, 2, size=(600, 4, 8)).astype(float)
    b = rng.integers(-2, 3, size=(600, 4)).astype(float)
    x, rnorm = nnls(A, b)
    assert x.max() < 100
    for i in range(0, 600, 3):
        wanted = oracle(A[i], b[i])[0]
        assert rnorm[i] <= np.linalg.norm(A[i] @ wanted - b[i]) + 1e-12
        assert nnls(A[i], b[i])[1] == pytest.approx(rnorm[i], abs=1e-12)


@pytest.mark.parametrize("size", [1e-200, 1e-120, 1e120, 1e200])
def test_numbers_whose_squares_overflow_or_vanish(size):
    rng = np.random.default_rng(9)
    A, b = rng.normal(size=(6, 3)), rng.normal(size=6)
    x, rnorm = nnls(A, b)
    cases = ((A, size * b, size, size), (size * A, size * b, 1, size), (size * A, b, 1 / size, 1))
    for matrix, side, factor, misfit in cases:
        found, found_rnorm = nnls(matrix, side)
        np.testing.assert_allclose(found, factor * x, rtol=1e-12)
        assert found_rnorm == pytest.approx(misfit * rnorm, rel=1e-12)


def test_integers_keep_all_digits():
    assert nnls(torch.tensor([[1]]), torch.tensor([2**24 + 1]))[0].item() == 2**24 + 1


@pytest.mark.parametrize("kind", ["random", "positive"])
def test_many_columns_and_few_rows(kind):
    """Large enough to begin with the supports of the kernel; those may be wrong, the solutions are not."""
    random = np.random.default_rng(0)
    A, b = random.standard_normal((40, 90)), random.standard_normal((40, 20))
    if kind == "positive":
        A = np.abs(A)
        A[:, 7] = A[:, 3]
    x, rnorm = torchscn.nnls(A, b)
    expected = [scipy.optimize.nnls(A, column)[1] for column in b.T]
    assert x.min() >= 0
    np.testing.assert_allclose(rnorm, expected, rtol=0, atol=1e-11)
    np.testing.assert_allclose(np.linalg.norm(A @ x - b, axis=0), rnorm, rtol=0, atol=1e-11)
