import pytest
import torch

from torchscn.data import ImageSet


def test_take_keeps_order_name_and_classes(numbered_set):
    taken = numbered_set.take([7, 3, 3])
    assert taken.labels.tolist() == [7, 3, 3]
    assert (taken.name, taken.classes) == (numbered_set.name, numbered_set.classes)
    torch.testing.assert_close(taken.images, numbered_set.images[[7, 3, 3]])


def test_take_understands_nothing_and_masks(numbered_set):
    assert len(numbered_set.take([])) == 0
    assert numbered_set.take(numbered_set.labels > 47).labels.tolist() == [48, 49]


def test_take_past_the_end_fails(numbered_set):
    with pytest.raises(IndexError):
        numbered_set.take([50])


def test_split_parts_are_disjoint_and_complete(numbered_set):
    train, validation = numbered_set.split(10, seed=0)
    assert (len(train), len(validation)) == (40, 10)
    assert sorted(train.labels.tolist() + validation.labels.tolist()) == list(range(50))
    torch.testing.assert_close(validation.images, numbered_set.images[validation.labels])


def test_split_depends_on_the_seed_alone(numbered_set):
    torch.manual_seed(5)
    first = numbered_set.split(10, seed=0)[1].labels
    torch.manual_seed(6)
    assert torch.equal(first, numbered_set.split(10, seed=0)[1].labels)
    assert not torch.equal(first, numbered_set.split(10, seed=1)[1].labels)


@pytest.mark.parametrize("n_validation", [0, 50, -1])
def test_split_needs_images_on_both_sides(numbered_set, n_validation):
    with pytest.raises(ValueError, match=f"between 1 and 49 .* got {n_validation}"):
        numbered_set.split(n_validation, seed=0)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64), "uint8 tensor .* got torch.float32"),
        (torch.zeros(2, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), r"images\[:, None\]"),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(2), "int64 tensor"),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), r"shape \(2,\)"),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 2]), "between 0 and 1 .* from 0 to 2"),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([-1, 0]), "from -1 to 0"),
    ],
)
def test_bad_tensors_are_refused(images, labels, message):
    with pytest.raises(ValueError, match=message):
        ImageSet("bad", images, labels, ("a", "b"))
