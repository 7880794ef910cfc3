import sys

import pytest
import torch

from torchscn.data import DataError, load

GOLDEN_TRAIN = [2, 8, 2, 6, 6, 7, 1, 9]
GOLDEN_TEST = [7, 9, 4, 7, 0, 2, 6, 1]


def test_sizes_and_levels():
    pytest.importorskip("sklearn")
    train, test = load("digits", "train"), load("digits", "test")
    assert train.images.shape == (1437, 1, 8, 8)
    assert test.images.shape == (360, 1, 8, 8)
    assert (int(train.images.min()), int(train.images.max())) == (0, 255)
    assert len(train.images.unique()) == 17


def test_splits_are_all_of_the_digits():
    datasets = pytest.importorskip("sklearn.datasets")
    train, test = load("digits", "train"), load("digits", "test")
    pixels = torch.cat([train.images, test.images]).double().mul(16 / 255).round().flatten(1)
    ours = sorted(torch.cat([pixels, torch.cat([train.labels, test.labels])[:, None]], dim=1).tolist())
    bunch = datasets.load_digits()
    theirs = [[*row, label] for row, label in zip(bunch.data.tolist(), bunch.target.tolist(), strict=True)]
    assert ours == sorted(theirs)


def test_split_never_changes():
    """Golden: first labels of each split, so that error rates stay comparable between versions."""
    pytest.importorskip("sklearn")
    assert load("digits", "train").labels[:8].tolist() == GOLDEN_TRAIN
    assert load("digits", "test").labels[:8].tolist() == GOLDEN_TEST


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install torchscn\[sklearn\]"):
        load("digits")
