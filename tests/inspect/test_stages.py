"""Networks taken apart: the layers do what the network does, and see the pixels that they are said to see."""

import pytest
import torch
from torch import nn

from torchscn import LayerOptions, Network, Row, create_model
from torchscn.inspect import Field, dissect, look
from torchscn.inspect.stages import check_layer, undo_norm

TABLE = [Row("sparse", 4), Row("conv", 5, 2), Row("sparse", 6)]


def trained_norms(network: Network) -> Network:
    """The network in evaluation mode with norms that change something."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 2)
                nn.init.normal_(module.bias)
    return network.eval()


@pytest.mark.parametrize("norm", ["before", "after"])
@pytest.mark.parametrize("affine", [False, True])
def test_layers_do_what_the_network_does(norm, affine):
    network = trained_norms(Network(TABLE, 3, options=LayerOptions(norm=norm, affine=affine)))
    x = torch.randn(2, 3, 8, 8)
    looks = list(look(network, x))
    expected = network.forward_features(x)
    for seen, features in zip(looks, expected, strict=True):
        torch.testing.assert_close(seen.codes, features, atol=1e-4, rtol=1e-4)
    last = undo_norm(dissect(network).norm, network.norm(network.blocks(x)))
    torch.testing.assert_close(last, looks[-1].codes, atol=1e-3, rtol=1e-3)


def test_a_network_in_training_is_looked_at_as_in_evaluation():
    network = trained_norms(create_model("scn1"))
    x = torch.randn(2, 3, 8, 8)
    codes = [seen.codes for seen in look(network, x, last=3)]
    network.train()
    torch.testing.assert_close([seen.codes for seen in look(network, x, last=3)], codes)


@pytest.mark.parametrize("layer", range(1, 6))
def test_a_position_sees_its_field_and_nothing_else(layer):
    table = [Row("conv", 3), Row("conv", 3, 2), Row("conv", 3), Row("conv", 3, 2), Row("conv", 3)]
    network = Network(table, in_channels=1).double().eval()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.constant_(module.weight, 1.0)  # no channel is ever cut off
    field = dissect(network).stages[layer - 1].field
    x = torch.rand(1, 1, 48, 48, dtype=torch.float64, requires_grad=True)
    hidden = x
    for stage in dissect(network).stages[:layer]:
        hidden = stage.code(hidden)
    row, column = hidden.shape[2] // 2, hidden.shape[3] // 2 - 1
    (gradient,) = torch.autograd.grad(hidden[0, :, row, column].sum(), x)
    seen = gradient[0, 0].nonzero()
    top, left, bottom, right = field.box(row, column)
    assert seen.min(0).values.tolist() == [top, left]
    assert seen.max(0).values.tolist() == [bottom - 1, right - 1]


def test_middle_of_a_field():
    assert Field(size=55, step=4, start=-25).middle(3, 0) == (12, 0, 16, 4)


def test_undo_norm_is_an_inverse_and_takes_lost_channels_as_their_mean():
    norm = nn.BatchNorm2d(3).eval()
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor([1.0, -2.0, 0.5]))
        norm.weight.copy_(torch.tensor([2.0, 0.0, -1.0]))
        norm.bias.copy_(torch.tensor([0.1, 0.2, 0.3]))
    x = torch.randn(2, 3, 4, 4)
    undone = undo_norm(norm, norm(x)).detach()
    torch.testing.assert_close(undone[:, [0, 2]], x[:, [0, 2]])
    assert (undone[:, 1] == -2).all()
    difference = undo_norm(norm, norm(x) - norm(torch.zeros_like(x)), shift=False).detach()
    torch.testing.assert_close(difference[:, [0, 2]], x[:, [0, 2]])
    assert (difference[:, 1] == 0).all()


def test_what_cannot_be_taken_apart_is_refused():
    with pytest.raises(TypeError, match=r"only a torchscn\.Network"):
        dissect(nn.Linear(2, 2))
    network = Network([Row("sparse", 4)])
    network.blocks.append(nn.MaxPool2d(2))
    with pytest.raises(TypeError, match=r"blocks\.1 is a MaxPool2d"):
        dissect(network)
    uneven = Network([Row("conv", 4)])
    uneven.blocks[0][1] = nn.Conv2d(3, 4, (3, 1))
    with pytest.raises(TypeError, match=r"square patches.*kernel_size \(3, 1\)"):
        dissect(uneven)


@pytest.mark.parametrize("shortcuts", ["pooled", "projected"])
def test_shortcuts_are_refused(shortcuts):
    with pytest.raises(TypeError, match="a network with shortcuts is not looked into"):
        dissect(create_model("scn1", shortcuts=shortcuts))


def test_a_single_module_has_no_pooled_shortcut_and_is_looked_into():
    network = trained_norms(Network([Row("sparse", 4), Row("conv", 5)], options=LayerOptions(shortcuts="pooled")))
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close([seen.codes for seen in look(network, x)], network.forward_features(x))


@pytest.mark.parametrize(("layer", "error"), [(0, "at least 1"), (15, "from 1 to 14"), (2.5, "whole number")])
def test_layers_that_do_not_exist(layer, error):
    with pytest.raises((ValueError, TypeError), match=error):
        check_layer(create_model("scn1"), layer)


def test_a_norm_between_convolution_and_relu_is_refused():
    network = Network([Row("conv", 4)])
    network.blocks[0] = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    with pytest.raises(TypeError, match=r"blocks\.0\.0 is not followed by ReLU"):
        dissect(network)


def test_pixels_that_were_not_preprocessed_are_refused():
    with pytest.raises(TypeError, match="preprocessed"):
        next(look(create_model("scn1"), torch.zeros(1, 3, 8, 8, dtype=torch.uint8)))
