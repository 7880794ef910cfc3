"""Properties that hold for any problem."""

import os
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import random_dictionary, signals
from torch.testing import assert_close

import torchscn
from torchscn.kernels import available_kernels

problems = st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(1, 150), st.integers(0, 10_000))
penalties = st.tuples(st.floats(0, 0.5), st.floats(1e-2, 0.5))
solvers = st.sampled_from(torchscn.list_solvers())
few = settings(max_examples=40, deadline=None)


def settled(solver):
    """Options with which a solver ends where it would end; many atoms in one dimension need thousands of sweeps."""
    cap = {"max_iter": 20_000} if solver in ("coordinate", "fista") else {}
    return {"solver": solver, "tol": 1e-11, **cap}


def make(problem):
    n_atoms, n_features, n_signals, seed = problem
    return signals(n_signals, n_features, seed), random_dictionary(n_atoms, n_features, seed)


@few
@given(problems, penalties, solvers, st.randoms(use_true_random=False))
def test_permuting_atoms_permutes_codes(problem, penalty, solver, random):
    x, D = make(problem)
    order = list(range(len(D)))
    random.shuffle(order)
    codes = torchscn.sparse_code(x, D, *penalty, **settled(solver))
    assert_close(torchscn.sparse_code(x, D[order], *penalty, **settled(solver)), codes[:, order], atol=1e-7, rtol=0)


@few
@given(problems, penalties, solvers, st.floats(1e-3, 1e3))
def test_scaling_signal_and_lam1_scales_codes(problem, penalty, solver, scale):
    x, D = make(problem)
    lam1, lam2 = penalty
    codes = torchscn.sparse_code(x, D, lam1, lam2, **settled(solver))
    scaled = torchscn.sparse_code(scale * x, D, scale * lam1, lam2, **settled(solver))
    assert_close(scaled / scale, codes, atol=1e-7, rtol=0)


@few
@given(problems, penalties, solvers)
def test_batch_equals_loop(problem, penalty, solver):
    x, D = make(problem)
    batch = torchscn.sparse_code(x, D, *penalty, **settled(solver))
    loop = torch.stack([torchscn.sparse_code(row, D, *penalty, **settled(solver)) for row in x[:5]])
    assert_close(batch[:5], loop, atol=1e-7, rtol=0)


@few
@given(problems, penalties, st.sampled_from([torch.float32, torch.float64]))
def test_codes_do_not_depend_on_the_number_of_threads(problem, penalty, dtype):
    x, D = make(problem)
    x, D = x.to(dtype), D.to(dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        rhs, gram = x @ D.T, D @ D.T + penalty[1] * torch.eye(len(D), dtype=dtype)
        one = torchscn.nonneg_qp(rhs, gram, solver="coordinate")
        torch.set_num_threads(3)
        three = torchscn.nonneg_qp(rhs, gram, solver="coordinate")
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, three)


@pytest.mark.skipif(len(available_kernels()) == 1, reason="no compiled kernel in this install")
@few
@given(problems, penalties, st.booleans())
def test_kernel_equals_fallback(problem, penalty, warm):
    x, D = make(problem)
    init = torch.ones(len(x), len(D), dtype=x.dtype) if warm else None
    results = []
    for kernel in available_kernels():
        with mock.patch.dict(os.environ, TORCHSCN_KERNEL=kernel):
            leaf = x.clone().requires_grad_()
            codes = torchscn.sparse_code(leaf, D, *penalty, solver="coordinate", tol=1e-12, init=init)
            codes.square().sum().backward()
            results.append((codes.detach(), leaf.grad))
    for codes, grad in results[1:]:
        assert_close(codes, results[0][0], atol=1e-9, rtol=0)
        assert_close(grad, results[0][1], atol=1e-6, rtol=1e-6)
