"""Networks by name: shapes, parameters, presets, options, errors."""

import inspect

import pytest
import torch
from torch import nn

from torchscn import SparseCoding2d, create_model, list_models
from torchscn.models import scn_table
from torchscn.options import PRESETS


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
        ({"max_iter": None}, ("fista", 0.0, None)),
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


def test_signature_names_every_option():
    parameters = inspect.signature(create_model).parameters
    assert parameters["tol"].default == 1e-2
    assert {"stem", "norm", "lam1", "max_iter"} <= set(parameters)


def test_a_misspelt_option_is_refused():
    with pytest.raises(TypeError, match="Did you mean 'max_iter'"):
        create_model("scn1", max_iters=3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: create_model("scn3"), ["scn3", "Did you mean 'scn"]),
        (lambda: create_model("scn1", preset="author"), ["Did you mean 'authors'"]),
        (lambda: create_model("scn1", norm="none"), ["norm", "'before'"]),
        (lambda: create_model("scn1", num_classes=0), ["num_classes"]),
        (lambda: create_model("scn1", order="wide"), ["order", "reduce_expand"]),
        (lambda: scn_table(width=0), ["width"]),
        (lambda: scn_table(downsample=(8,)), ["downsample", "from 1 to 7", "got 8"]),
        (lambda: create_model("scn1", downsample=(2, 2)), ["downsample", "each at most once"]),
    ],
)
def test_errors_help(make, words):
    with pytest.raises(ValueError, match=r".") as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)
