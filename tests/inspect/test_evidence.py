"""Scores taken apart add up again."""

import pytest
import torch
from torch import nn

from torchscn import LayerOptions, Network, Row
from torchscn.inspect import gather_evidence


@pytest.mark.parametrize("norm", ["before", "after"])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("kind", ["sparse", "conv"])
def test_contributions_add_up_to_the_score(norm, affine, kind):
    options = LayerOptions(norm=norm, affine=affine)
    network = Network([Row(kind, 5), Row(kind, 6, 2)], 4, 2, options).double().eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            if affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    x = torch.randn(3, 2, 8, 8, dtype=torch.float64)
    nn.init.normal_(network.classifier.bias)
    scores = network(x).detach()
    evidence = gather_evidence(network, x)
    torch.testing.assert_close(evidence.atoms().sum(2) + evidence.bias, scores)
    torch.testing.assert_close(evidence.scores, scores)
    for answer in range(4):
        places = evidence.places(1, answer)
        assert places.shape == (4, 4)
        assert float(places.sum()) + evidence.without_place(answer) == pytest.approx(float(scores[1, answer]))
