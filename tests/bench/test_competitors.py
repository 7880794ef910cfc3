"""Competitors solve the same problem as our own solvers and layers."""

import copy

import pytest
import torch
from torch.testing import assert_close

from torchscn import SparseCoding2d, create_model
from torchscn.bench.competitors import scikit_learn, spams_lasso
from torchscn.bench.competitors.authors import AuthorsLayer, replace_layers
from torchscn.bench.competitors.fused_fista import fused_fista
from torchscn.bench.competitors.unrolled import two_steps
from torchscn.bench.problems import DenseProblem
from torchscn.functional import sparse_code
from torchscn.problem import normal_form


def test_dense_competitors_solve_the_same_problem():
    problem = DenseProblem(n_signals=40, n_features=30, n_atoms=12)
    x, D = problem.make()
    exact = sparse_code(x, D, 0.0, problem.lam2, solver="active_set")
    assert_close(fused_fista(*normal_form(x, D, 0.0, problem.lam2), n_steps=500), exact, atol=1e-3, rtol=1e-3)
    assert_close(spams_lasso.solve(*spams_lasso.prepare(x, D), problem.lam2, 1), exact, atol=1e-3, rtol=1e-3)
    sklearn_codes = scikit_learn.solve(*scikit_learn.prepare(x, D, problem.lam2), 1000)
    assert_close(sklearn_codes, exact, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("stride", [1, 2])
def test_authors_layer_is_the_same_layer(stride):
    ours = SparseCoding2d(4, 6, stride=stride, lam1=0.05, lam2=0.05, tol=1e-6)
    theirs = AuthorsLayer(copy.deepcopy(ours))
    x = torch.randn(2, 4, 7, 9)
    results = []
    for layer in (ours, theirs):
        leaf = x.clone().requires_grad_()
        codes = layer(leaf)
        codes.square().sum().backward()
        results.append((codes.detach(), leaf.grad, layer.dictionary.grad, layer.lam1.grad))
    for a, b in zip(*results, strict=True):
        assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_networks_take_other_layers():
    x = torch.randn(2, 3, 8, 8)
    for make in (AuthorsLayer, two_steps):
        model = replace_layers(create_model("scn1"), make)
        model(x).sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
