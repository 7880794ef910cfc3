"""Evaluation in one pass: the same answers, wherever nobody could tell."""

from unittest import mock

import pytest
import torch
from problems import with_residual
from torch import nn
from torch.testing import assert_close

from torchscn import SparseCoding2d, create_model
from torchscn.fusion import run_fused
from torchscn.training.distributed import synchronize_norms


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("norm", ["before", "after"])
@pytest.mark.parametrize("solver", ["auto", "coordinate", "fista"])
def test_evaluation_in_one_pass_changes_nothing(affine, norm, solver, kernel):
    model = create_model("scn1", affine=affine, norm=norm, solver=solver, tol=1e-5, stem=5)
    x = torch.randn(3, 3, 12, 12)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.rand_like(parameter)
    model(x)
    model.eval()
    with torch.no_grad():
        fused = model(x)
    assert_close(fused, model(x), atol=1e-3, rtol=1e-3)


def test_evaluation_in_one_pass_lets_hooks_see():
    model = create_model("scn1").eval()
    seen = []
    model.blocks[0][1].register_forward_hook(lambda *_: seen.append("codes"))
    with torch.no_grad():
        model(torch.randn(1, 3, 8, 8))
    assert seen == ["codes"]


def test_evaluation_in_one_pass_lets_hooks_on_blocks_see():
    model = create_model("scn1").eval()
    seen = []
    model.blocks[3].register_forward_hook(lambda *_: seen.append("block"))
    with torch.no_grad():
        model(torch.randn(1, 3, 8, 8))
    assert seen == ["block"]


def unchanged(model):
    return model


def with_training_norm(model):
    model.blocks[2][0].train()
    return model


@pytest.mark.parametrize("change", [unchanged, with_residual, with_training_norm])
def test_evaluation_without_gradient_is_that_with(change):
    model = change(create_model("scn1", tol=1e-5).eval())
    x = torch.randn(4, 3, 8, 8)
    expected = model(x)
    with torch.no_grad():
        assert_close(model(x), expected, atol=1e-4, rtol=1e-3)


def with_synced_norms(model):
    synchronize_norms(model)
    return model


@pytest.mark.parametrize(("change", "n_fused"), [(unchanged, 14), (with_synced_norms, 14), (with_residual, 0)])
def test_evaluation_takes_one_pass_where_it_can(change, n_fused):
    model = change(create_model("scn1").eval())
    watched = mock.patch.object(SparseCoding2d, "infer", autospec=True, side_effect=SparseCoding2d.infer)
    with watched as fused, torch.no_grad():
        model(torch.randn(1, 3, 8, 8))
    assert fused.call_count == n_fused


def test_a_batch_norm_of_your_own_is_called():
    class Louder(nn.BatchNorm2d):
        def forward(self, x):
            return 10 * super().forward(x)

    model = create_model("scn1").eval()
    x = torch.randn(1, 3, 8, 8)
    model.blocks[1][0] = Louder(16).eval()
    expected = model(x)
    with torch.no_grad():
        assert_close(model(x), expected, atol=1e-4, rtol=1e-3)


def test_evaluation_under_autocast_is_in_float32():
    model = create_model("scn1", tol=1e-5).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        features = run_fused([module for block in model.blocks for module in block.children()], x)
    assert features.dtype == torch.float32


def test_evaluation_finishes_where_sweeps_crawl():
    """Overcomplete, so every block needs exact steps; codes are written over the correlations meanwhile."""
    model = create_model("scn4", preset="text", solver="auto", tol=1e-4)
    x = torch.randn(4, 3, 8, 8)
    for _ in range(3):
        model(x)  # the norms need statistics
    model.eval()
    with torch.no_grad():
        fused = model(x)
        for layer in model.modules():
            if isinstance(layer, SparseCoding2d):
                layer.solver = "active_set"
        assert_close(fused, model(x), atol=1e-2, rtol=1e-2)


def test_half_precision_norms_under_autocast_are_computed_in_float32():
    """Their scale was read as float32, past its end: NaN or worse."""
    model = create_model("scn1", affine=True, tol=1e-5)
    x = torch.randn(2, 3, 8, 8)
    model(x)
    model.eval().bfloat16()
    modules = [module for block in model.blocks for module in block.children()] + [model.norm]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        fused = run_fused(modules, x.bfloat16())
    expected = run_fused([module.float() for module in modules], x.bfloat16().float())
    assert fused.isfinite().all()
    assert_close(fused.float(), expected, atol=0.05, rtol=0.05)
