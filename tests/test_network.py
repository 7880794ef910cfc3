"""Networks from tables: mixing kinds, bottlenecks, features, errors."""

import pytest
import torch
from problems import with_residual
from torch.testing import assert_close

from torchscn import Bottleneck, CodingOptions, LayerOptions, Network, Row, create_model


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


def test_features_of_a_replaced_block_are_what_it_puts_out():
    model = with_residual(create_model("scn1").eval())
    x = torch.randn(1, 3, 8, 8)
    features = model.forward_features(x)
    assert len(features) == len(model.table)
    assert_close(features[1], model.blocks[1](features[0]))


def test_options_of_another_kind():
    with pytest.raises(TypeError, match=r"torchscn\.LayerOptions; got CodingOptions"):
        Network([("sparse", 4, 1)], options=CodingOptions())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: create_model("scn1")(torch.randn(2, 1, 32, 32)), ["(batch, 3, height, width)", "in_channels=1"]),
        (lambda: create_model("scn1")(torch.randn(2, 3, 2, 32)), ["2 x 32", "too small"]),
        (lambda: Network([]), ["empty"]),
        (lambda: Network([("dense", 3, 1)]), ["kind='dense'", "'sparse'"]),
    ],
)
def test_errors_help(make, words):
    with pytest.raises(ValueError, match=r".") as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)
