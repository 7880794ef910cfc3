"""Groups of parameters, and Muon on dictionaries."""

import math

import pytest
import torch
from runs import small_model

from torchscn import create_model
from torchscn.training import TrainConfig
from torchscn.training.optimizer import Muon, make_optimizer, orthogonalize, set_rates


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 1, 8, 8)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("shape", [(16, 27), (64, 16), (8, 8)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape):
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.3


def test_orthogonalizing_keeps_the_directions():
    matrix = torch.randn(6, 9)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    inside = u.mT @ orthogonalize(matrix) @ vh.mT
    torch.testing.assert_close(inside, torch.diag(inside.diagonal()), atol=1e-4, rtol=0)


def test_a_zero_gradient_stays_zero():
    assert torch.equal(orthogonalize(torch.zeros(3, 5)), torch.zeros(3, 5))


def test_without_orthogonal_groups_it_is_ordinary_gradient_descent():
    weights = {}
    for kind in (torch.optim.SGD, Muon):
        model = small_model()
        optimizer = kind(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2)
        torch.manual_seed(1)
        for _ in range(3):
            step(model, optimizer)
        weights[kind] = model.state_dict()
    torch.testing.assert_close(weights[Muon], weights[torch.optim.SGD])


def test_dictionaries_and_filters_keep_their_norm():
    model = small_model()
    optimizer = make_optimizer(model, TrainConfig(optimizer="muon", muon_lr=0.01))
    for _ in range(4):
        step(model, optimizer)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 4:
            assert float(parameter.detach().norm()) == pytest.approx(math.sqrt(len(parameter)), rel=0.05), name


def test_groups_are_those_that_the_settings_name():
    model = create_model("scn1")
    one = make_optimizer(model, TrainConfig())
    assert type(one) is torch.optim.SGD
    assert list(map(id, one.param_groups[0]["params"])) == list(map(id, model.parameters()))
    others, undecayed = make_optimizer(model, TrainConfig(decay_lam1=False, weight_decay=0.1)).param_groups
    assert (others["weight_decay"], undecayed["weight_decay"]) == (0.1, 0.0)
    assert len(undecayed["params"]) == 14
    *_, matrices = make_optimizer(model, TrainConfig(optimizer="muon", decay_lam1=False)).param_groups
    assert len(matrices["params"]) == 14
    assert matrices["orthogonal"]
    every = [
        id(p) for group in make_optimizer(model, TrainConfig(optimizer="muon")).param_groups for p in group["params"]
    ]
    assert sorted(every) == sorted(map(id, model.parameters()))


def test_projections_of_shortcuts_are_moved_like_filters():
    model = create_model("cnn1", in_channels=1, shortcuts="projected")
    *_, matrices = make_optimizer(model, TrainConfig(optimizer="muon")).param_groups
    assert matrices["orthogonal"]
    assert len(matrices["params"]) == 14 + 3
    moved = set(map(id, matrices["params"]))
    assert all(id(model.shortcuts[number].weight) in moved for number in ("1", "4", "6"))


def test_rates_follow_the_schedule_together():
    optimizer = make_optimizer(small_model(), TrainConfig(optimizer="muon", lr=0.2, muon_lr=0.01))
    set_rates(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.005]


def test_lam1_is_decayed_unless_told_otherwise():
    sizes = {}
    for decays in (True, False):
        layer = create_model("scn1", in_channels=1, lam1=0.5).sparse_layers()[0][1]
        optimizer = make_optimizer(layer, TrainConfig(lr=1.0, momentum=0.0, weight_decay=0.1, decay_lam1=decays))
        layer.lam1.grad = torch.zeros_like(layer.lam1)
        optimizer.step()
        sizes[decays] = float(layer.lam1.detach())
    assert sizes == {True: pytest.approx(0.45), False: pytest.approx(0.5)}


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"optimizer": "adam"}, "optimizer"), ({"muon_lr": -1.0}, "muon_lr"), ({"muon_momentum": 1.0}, "muon_momentum")],
)
def test_impossible_settings_are_refused(settings, error):
    with pytest.raises(ValueError, match=error):
        TrainConfig(**settings)
