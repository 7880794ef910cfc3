"""Linear probes on features that are separable, or not."""

import pytest
import torch

from torchscn.inspect import probe, probe_layers, survey


def test_separable_classes_are_separated():
    labels = torch.arange(4).repeat(50)
    features = torch.nn.functional.one_hot(labels, 4) + 0.05 * torch.randn(200, 4)
    found = probe(features * torch.tensor([1e-6, 1.0, 1e3, 1.0]), labels)  # scales do not matter
    assert found.error == 0
    assert found.standard_error == 0


def test_noise_is_not():
    labels = torch.arange(4).repeat(100)
    found = probe(torch.randn(400, 3), labels)
    assert 60 < found.error < 90
    assert found.standard_error == pytest.approx(100 * (found.error / 100 * (1 - found.error / 100) / 400) ** 0.5)


def test_a_probe_is_tested_on_images_it_has_not_seen():
    """As many features as images: every fit is perfect on its own half."""
    labels = torch.arange(2).repeat(30)
    assert 25 < probe(torch.randn(60, 200), labels).error < 75


def test_constant_features_do_no_harm():
    labels = torch.arange(2).repeat(20)
    assert probe(torch.stack([labels.float(), torch.ones(40)], 1), labels).error == 0


def test_there_is_one_probe_for_the_image_and_one_for_every_layer(network, images):
    seen, done = survey(network, images), []
    probes = probe_layers(seen, done.append)
    assert len(probes) == len(seen.layers) + 1 == len(done)
    assert probes[0].error > probes[-1].error


def test_a_class_with_one_image_cannot_be_probed():
    with pytest.raises(ValueError, match="two classes, and two images of each"):
        probe(torch.randn(5, 2), torch.tensor([0, 0, 1, 1, 2]))


def test_small_features_count_as_much_as_large_ones():
    labels = torch.arange(2).repeat(50)
    small = 1e-6 * (labels + 0.05 * torch.randn(100))
    assert probe(torch.stack([small, torch.randn(100)], 1), labels).error == 0
