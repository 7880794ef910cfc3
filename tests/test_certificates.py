"""Certificates of networks and single layers."""

import pytest
import torch
from torch import nn

import torchscn
from torchscn import SparseCoding, SparseCoding1d, SparseCoding2d


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (SparseCoding(5, 4), (7, 5)),
        (SparseCoding1d(3, 4), (2, 3, 9)),
        (SparseCoding2d(3, 4), (2, 3, 6, 6)),
        (SparseCoding2d(3, 4), (3, 6, 6)),
    ],
)
def test_every_kind_of_layer(layer, shape):
    (certificate,) = torchscn.certify(nn.Sequential(layer), torch.randn(shape))
    assert certificate.name == "0"
    assert certificate.is_sound
    assert 0 < certificate.active < 1
    assert certificate.dead in (0.0, 0.25, 0.5, 0.75)


def test_dead_atoms_are_counted():
    layer = SparseCoding2d(3, 8)
    layer.dictionary.data[:2] = 0
    (certificate,) = torchscn.certify(layer, torch.randn(2, 3, 9, 9))
    assert certificate.dead == 0.25


def test_a_layer_out_of_iterations_is_not_sound():
    layer = SparseCoding2d(3, 64, lam2=1e-6, solver="coordinate", tol=1e-8, max_iter=3)
    (certificate,) = torchscn.certify(layer, torch.randn(2, 3, 9, 9))
    assert not certificate.is_sound
    layer.tol, layer.max_iter = 0.0, 3
    assert torchscn.certify(layer, torch.randn(2, 3, 9, 9))[0].converged is None


def test_no_signals():
    with pytest.raises(ValueError, match="at least one signal"):
        torchscn.certify(SparseCoding(5, 4), torch.randn(0, 5))


def test_nothing_is_changed():
    model = torchscn.create_model("scn1").train()
    model.blocks[0][0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torchscn.certify(model, torch.randn(2, 3, 8, 8))
    assert model.training
    assert not model.blocks[0][0].training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
