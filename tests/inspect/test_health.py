"""Layers that were made ill are found to be ill."""

import pytest
import torch

from torchscn import LayerOptions, Network, Row, certify, create_model, data
from torchscn.inspect import dissect, duplicates, examine, survey


def ill(change) -> Network:
    """A network that knows digits, with its first dictionary changed."""
    network = Network([Row("sparse", 6), Row("conv", 4, 2)], 10, in_channels=1)
    images = data.load("digits", "test")
    network.remember(data.Normalization.fit(images.images), images.classes, (8, 8))
    with torch.no_grad():
        change(network.sparse_layers()[0][1])
    return network.eval()


def findings(network: Network) -> str:
    some = data.load("digits", "test").take(range(30))
    certificates = certify(network, network.preprocess(some.images))
    health = examine(network, survey(network, some), certificates)
    return " ".join(concern.finding for layer in health for concern in layer.concerns())


def test_a_sound_layer_raises_no_concern():
    assert findings(ill(lambda layer: layer.lam1.fill_(0.1))) == ""


def kill(layer):
    layer.dictionary[2:4] = 0


def double(layer):
    layer.dictionary[1] = 1.5 * layer.dictionary[0] + 1e-4


def align(layer):
    layer.dictionary.copy_(torch.randn(1, 1, 3, 3) + 1e-5 * torch.randn(6, 1, 3, 3))
    layer.lam2 = 0.0


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (kill, "dead atoms: 2 of 6 are used by none"),
        (double, "pairs that point the same way (cosine above 0.98): 1"),
        (align, "badly conditioned"),
        (lambda layer: layer.lam1.fill_(0), "lam1 was learned down to 0"),
        (lambda layer: layer.lam1.fill_(100), "0 % of the codes are active"),
        (lambda layer: layer.lam1.fill_(-1), "lam1 was learned down to 0"),
        (lambda layer: (setattr(layer, "tol", 1e-9), setattr(layer, "max_iter", 1)), "of the positions met the tol"),
    ],
)
def test_what_is_wrong_is_found(change, finding):
    assert finding in findings(ill(change))


def test_every_concern_comes_with_advice():
    health = examine(ill(double))
    concerns = [concern for layer in health for concern in layer.concerns()]
    assert concerns
    assert all(concern.advice and concern.layer == 1 for concern in concerns)


def test_without_images_weights_alone_are_examined():
    first, *_ = examine(create_model("scn1"))
    assert first.dead is None
    assert first.active is None
    gram = dissect(create_model("scn1")).stages[0]
    assert gram.width == 16
    assert first.condition > 1


def test_condition_is_that_of_the_gram_matrix():
    network = create_model("scn1")
    layer = network.sparse_layers()[0][1]
    atoms = layer.dictionary.detach().flatten(1).double()
    expected = torch.linalg.cond(atoms @ atoms.T + layer.lam2 * torch.eye(16))
    assert examine(network)[0].condition == pytest.approx(float(expected))


def test_a_penalty_that_is_fixed_at_zero_is_no_concern():
    network = Network([Row("sparse", 6)], 10, in_channels=1, options=LayerOptions(lam1=0.0, learn_lam1=False))
    assert not examine(network)[0].concerns()


def test_opposite_atoms_are_alike_where_codes_have_signs():
    atoms = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert duplicates(atoms) == []
    assert duplicates(atoms, signed=True) == [(0, 1)]
