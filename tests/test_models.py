"""The networks: sizes, shapes, presets, errors."""

import sys
from unittest import mock

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from torchscn import Bottleneck, SparseCoding2d, create_model, list_models
from torchscn.fusion import run_fused
from torchscn.models import PRESETS, scn_table
from torchscn.network import LayerOptions, Network, Row
from torchscn.training.distributed import synchronize_norms


def n_parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "count"), [("scn1", 173_896), ("scn2", 347_336), ("scn4", 694_216)])
def test_parameter_counts_of_the_paper(name, count):
    assert n_parameters(create_model(name, 10)) == count


@pytest.mark.parametrize("name", list_models())
def test_forward_shape_and_features(name):
    model = create_model(name, num_classes=7)
    x = torch.randn(2, 3, 32, 32)
    assert model(x).shape == (2, 7)
    features = model.forward_features(x)
    k = int(name[-1])
    widths = [16, 16 * k] * 3 + [32, 32 * k] * 2 + [64, 64 * k] * 2
    sizes = [32] * 6 + [16] * 4 + [8] * 4
    assert [tuple(f.shape) for f in features] == [(2, w, s, s) for w, s in zip(widths, sizes, strict=True)]
    assert all((f >= 0).all() for f in features)


def test_twin_has_the_same_shapes():
    scn, cnn = create_model("scn2"), create_model("cnn2")
    x = torch.randn(2, 3, 16, 16)
    assert [f.shape for f in scn.forward_features(x)] == [f.shape for f in cnn.forward_features(x)]
    assert [type(m) for m in scn.modules() if isinstance(m, nn.BatchNorm2d)] == [
        type(m) for m in cnn.modules() if isinstance(m, nn.BatchNorm2d)
    ]
    # One bias per output channel where the sparse layer has one lam1.
    biases = sum(row.width for row in cnn.table)
    assert n_parameters(cnn) == n_parameters(scn) - 14 + biases


@pytest.mark.parametrize("preset", [None, *PRESETS])
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 8), (4, 33)])
def test_any_sensible_input(preset, channels, size):
    model = create_model("scn1", 5, channels, preset=preset, stem=8)
    x = torch.randn(2, channels, size, size)
    loss = model(x).square().sum()
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_presets_choose_and_options_go_before_them():
    text = create_model("scn2", preset="text")
    assert [row.width for row in text.table[:2]] == [32, 16]
    assert [row.stride for row in text.table].index(2) == 10
    assert isinstance(text.blocks[0][0], SparseCoding2d)
    authors = create_model("scn1", preset="authors", tol=1e-3, solver="auto")
    layer = authors.blocks[0][1]
    assert (layer.solver, layer.tol, layer.max_iter, layer.lam2) == ("auto", 1e-3, None, 1e-6)
    n_features = layer.dictionary[0].numel()
    assert layer.dictionary.std() < 2 / n_features


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("fista", 0.0, 50)),
        ({"solver": "fista", "tol": 0.0}, ("fista", 0.0, 50)),
        ({"max_iter": 20}, ("fista", 0.0, 20)),
        ({"tol": 1e-4}, ("fista", 1e-4, None)),
        ({"solver": "coordinate"}, ("coordinate", 1e-2, None)),
        ({"solver": "coordinate", "max_iter": 7}, ("coordinate", 1e-2, 7)),
    ],
)
def test_tolerance_and_cap_of_a_preset_belong_to_its_solver(given, expected):
    layer = create_model("scn1", preset="authors", **given).blocks[0][1]
    assert (layer.solver, layer.tol, layer.max_iter) == expected


def test_options_reach_every_layer():
    model = create_model("scn1", lam1=0.1, per_atom=True, affine=True, unit_norm=True, width=3, learn_lam1=False)
    layers = [m for _, m in model.sparse_layers()]
    assert len(layers) == 14
    assert all(m.lam1.shape == (m.n_atoms,) and m.unit_norm and not m.lam1.requires_grad for m in layers)
    assert all(torch.all(m.lam1 == 0.1) for m in layers)
    assert model.blocks[0][0].affine
    assert model.table[1].width == 48


def test_table_of_your_own_mixes_kinds():
    model = Network([("sparse", 8, 1), Row("conv", 12, 2), Row("sparse", 6)], num_classes=3, in_channels=2)
    x = torch.randn(2, 2, 10, 10)
    assert model(x).shape == (2, 3)
    assert [tuple(f.shape[1:]) for f in model.forward_features(x)] == [(8, 10, 10), (12, 5, 5), (6, 5, 5)]


def test_bottleneck():
    x = torch.randn(2, 3, 8, 8)
    assert Bottleneck(3, 4, 16, stride=2)(x).shape == (2, 16, 4, 4)
    assert Bottleneck(3, 4, 16, order="expand_reduce")(x).shape == (2, 4, 8, 8)
    assert Bottleneck(3, 4, 16, kind="conv", options=LayerOptions(norm="after"))(x).shape == (2, 16, 8, 8)


def test_features_are_what_the_network_uses():
    model = create_model("scn1").eval()
    x = torch.randn(2, 3, 16, 16)
    last = model.forward_features(x)[-1]
    assert_close(model.classifier(model.norm(last).mean((2, 3))), model(x))


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


class Residual(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return x + self.block(x)


def unchanged(model):
    return model


def with_residual(model):
    model.blocks[1] = Residual(model.blocks[1])
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


def test_features_of_a_replaced_block_are_what_it_puts_out():
    model = with_residual(create_model("scn1").eval())
    x = torch.randn(1, 3, 8, 8)
    features = model.forward_features(x)
    assert len(features) == len(model.table)
    assert_close(features[1], model.blocks[1](features[0]))


def test_evaluation_under_autocast_is_in_float32():
    model = create_model("scn1", tol=1e-5).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        features = run_fused([module for block in model.blocks for module in block.children()], x)
    assert features.dtype == torch.float32


def test_evaluation_finishes_what_coordinate_descent_cannot(monkeypatch):
    model = create_model("scn1", lam2=1e-6, tol=1e-6).eval()
    x = torch.randn(2, 3, 8, 8)
    expected = model(x)
    monkeypatch.setattr(sys.modules["torchscn.solvers.coordinate"], "MAX_ITER", 2)
    with torch.no_grad():
        assert_close(model(x), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: create_model("scn3"), ["scn3", "Did you mean 'scn"]),
        (lambda: create_model("scn1", preset="author"), ["Did you mean 'authors'"]),
        (lambda: create_model("scn1", norm="none"), ["norm", "'before'"]),
        (lambda: create_model("scn1", num_classes=0), ["num_classes"]),
        (lambda: create_model("scn1", order="wide"), ["order", "reduce_expand"]),
        (lambda: create_model("scn1")(torch.randn(2, 1, 32, 32)), ["(batch, 3, height, width)", "in_channels=1"]),
        (lambda: create_model("scn1")(torch.randn(2, 3, 2, 32)), ["2 x 32", "too small"]),
        (lambda: Network([]), ["empty"]),
        (lambda: Network([("dense", 3, 1)]), ["kind='dense'", "'sparse'"]),
        (lambda: scn_table(width=0), ["width"]),
    ],
)
def test_errors_help(make, words):
    with pytest.raises(ValueError, match=r".") as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)
