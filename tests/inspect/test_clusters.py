"""Cluster scores on data that were made to have clusters, or none."""

import sys

import pytest
import torch

from torchscn.inspect import Places, compare_with_kmeans, purity


def planted(n_clusters: int = 6, n_each: int = 60, spread: float = 0.05) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around centres in orthogonal directions, and the cluster of each."""
    centres = 3 * torch.eye(n_clusters, 12)
    groups = torch.arange(n_clusters).repeat_interleave(n_each)
    return centres[groups] + spread * torch.randn(len(groups), 12), groups


def test_planted_clusters_are_found():
    patches, groups = planted()
    codes = torch.nn.functional.one_hot(groups, 6).float()
    scores = compare_with_kmeans(Places(patches, codes, groups % 3), atoms=torch.eye(6, 12))
    assert scores.agreement > 0.8  # a random start may merge two of the six
    assert scores.purity == 1
    assert scores.chance == pytest.approx(1 / 3)
    assert scores.dominance == 1
    assert scores.centre_cosine == pytest.approx((5 / 6) ** 0.5, abs=0.01)  # seen from the mean of all
    assert scores.n_positions == 360
    assert scores.without_atom == 0


def test_unrelated_codes_do_not_agree():
    patches, groups = planted()
    codes = torch.rand(len(patches), 6)
    scores = compare_with_kmeans(Places(patches, codes, torch.randint(3, groups.shape)))
    assert abs(scores.agreement) < 0.05
    assert scores.purity < 0.5
    assert scores.dominance < 0.4
    assert scores.ceiling > 0.7
    assert scores.centre_cosine is None


def test_positions_without_atoms_are_left_out():
    patches, groups = planted()
    codes = torch.nn.functional.one_hot(groups, 6).float()
    codes[:90] = 0
    scores = compare_with_kmeans(Places(patches, codes, groups))
    assert scores.without_atom == pytest.approx(0.25)
    assert scores.n_positions == 270
    assert compare_with_kmeans(Places(patches, torch.zeros_like(codes), groups)) is None


def test_fewer_positions_than_atoms():
    patches, groups = planted(n_each=1)
    codes = torch.rand(6, 40)
    assert compare_with_kmeans(Places(patches, codes, groups)).n_positions == 6


def test_signed_codes_count_by_size():
    patches, groups = planted()
    codes = -torch.nn.functional.one_hot(groups, 6).float()
    assert compare_with_kmeans(Places(patches, codes, groups)).purity == 1


def test_purity_of_one_group_is_the_most_frequent_class():
    assert purity(torch.zeros(10, dtype=torch.int64), torch.tensor([0] * 7 + [1] * 3)) == pytest.approx(0.7)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    patches, groups = planted()
    with pytest.raises(ImportError, match=r"pip install torchscn\[inspect\]"):
        compare_with_kmeans(Places(patches, torch.rand(len(patches), 6), groups))


def test_an_atom_that_is_subtracted_makes_a_group_of_its_own():
    patches, groups = planted(n_clusters=2)
    codes = torch.where(groups == 0, 1.0, -1.0)[:, None]
    scores = compare_with_kmeans(Places(patches, codes, groups), atoms=torch.eye(1, 12) - torch.eye(2, 12)[1:])
    assert scores.purity == 1
    assert scores.centre_cosine == pytest.approx(1, abs=0.01)


def test_positions_that_are_not_finite_are_left_out():
    patches, groups = planted()
    patches[:36, 3] = torch.nan
    scores = compare_with_kmeans(Places(patches, torch.rand(len(patches), 6), groups))
    assert scores.n_positions == 324


def test_purity_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one member"):
        purity(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64))
