from pathlib import Path

import pytest
import torch

from torchscn.data import DataError, cifar, load

PATH = Path("some-batch.bin")


def records(images: torch.Tensor, *labels: list[int]) -> bytes:
    """Images with one or two label bytes each, as the official files hold them."""
    rows = torch.cat([torch.tensor(labels, dtype=torch.uint8).T, images.flatten(1)], dim=1)
    return bytes(rows.flatten().tolist())


@pytest.fixture
def pictures() -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)


@pytest.mark.parametrize("folder", ["cifar10", "cifar-10-batches-bin"])
def test_cifar10_joins_its_five_batches(tmp_path, declare_official, folder):
    target = tmp_path / folder
    target.mkdir()
    pictures = torch.randint(0, 256, (10, 3, 32, 32), dtype=torch.uint8)
    for i in range(5):
        content = records(pictures[2 * i : 2 * i + 2], [i, 9 - i])
        (target / f"data_batch_{i + 1}.bin").write_bytes(content)
    loaded = declare_official(cifar.CIFAR10, target).load("train", tmp_path)
    torch.testing.assert_close(loaded.images, pictures)
    assert loaded.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]


@pytest.mark.parametrize("folder", ["cifar100", "cifar-100-binary"])
def test_cifar100_keeps_the_fine_label(tmp_path, declare_official, pictures, folder):
    target = tmp_path / folder
    target.mkdir()
    (target / "test.bin").write_bytes(records(pictures, [3, 19], [49, 99]))
    loaded = declare_official(cifar.CIFAR100, target).load("test", tmp_path)
    assert [loaded.classes[label] for label in loaded.labels] == ["mountain", "worm"]
    torch.testing.assert_close(loaded.images, pictures)


def test_class_names_are_complete_and_sorted():
    assert len(set(cifar.CIFAR100_CLASSES)) == 100
    assert list(cifar.CIFAR100_CLASSES) == sorted(cifar.CIFAR100_CLASSES)
    assert len(set(cifar.CIFAR10_CLASSES)) == 10


def test_a_label_out_of_range_is_noticed(pictures):
    with pytest.raises(DataError, match=r"some-batch\.bin holds the label 10, expected 0 to 9 .*scn data get cifar10"):
        cifar.parse(records(pictures, [0, 10]), PATH, "cifar10", cifar.CIFAR10_CLASSES)


def test_a_broken_record_is_noticed(pictures):
    with pytest.raises(DataError, match=r"holds 6,145 bytes, which is not a whole number of 3,073-byte records"):
        cifar.parse(records(pictures, [0, 1])[:-1], PATH, "cifar10", cifar.CIFAR10_CLASSES)


def test_load_refuses_a_truncated_file(tmp_path, pictures):
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "test.bin").write_bytes(records(pictures, [0, 0], [0, 1]))
    with pytest.raises(DataError, match=r"test\.bin is truncated: expected 30,740,000 bytes, found 6,148"):
        load("cifar100", "test", tmp_path)


@pytest.mark.parametrize(
    ("name", "mean", "under_the_sky"),
    [("cifar10", [0.4942, 0.4851, 0.4504], "ship"), ("cifar100", [0.5088, 0.4874, 0.4419], "sea")],
)
def test_real_files(real_data, name, mean, under_the_sky):
    test = load(name, "test", real_data)
    assert test.images.shape == (10_000, 3, 32, 32)
    assert test.labels.bincount().unique().tolist() == [10_000 // len(test.classes)]
    assert (test.images.double().mean((0, 2, 3)) / 255).tolist() == pytest.approx(mean, abs=1e-3)
    # Upright: the sky is bright and above; left and right look alike.
    picture = test.take(test.labels == test.classes.index(under_the_sky)).images.double().mean((0, 1))
    above_minus_below = float(picture[:16].mean() - picture[16:].mean())
    left_minus_right = float(picture[:, :16].mean() - picture[:, 16:].mean())
    assert above_minus_below > 5 * abs(left_minus_right)


def test_real_cifar10_training_files(real_data):
    train = load("cifar10", "train", real_data)
    assert train.images.shape == (50_000, 3, 32, 32)
    assert train.labels.bincount().tolist() == [5_000] * 10
    assert [train.classes[label] for label in train.labels[:3]] == ["frog", "truck", "truck"]
