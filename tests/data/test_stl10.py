from pathlib import Path

import pytest
import torch

from torchscn.data import DataError, ImageSet, load, stl10

PATH = Path("some-file.bin")


def column_major(images: torch.Tensor) -> bytes:
    """Images as the official files hold them: each colour column by column."""
    return bytes(images.mT.flatten().tolist())


@pytest.fixture
def pictures() -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, 96, 96), dtype=torch.uint8)


@pytest.fixture
def load_small(tmp_path, declare_official, pictures):
    """Write two training images with these labels, and load them."""

    def write(labels: bytes, folder: str = "stl10") -> ImageSet:
        target = tmp_path / folder
        target.mkdir()
        (target / "train_X.bin").write_bytes(column_major(pictures))
        (target / "train_y.bin").write_bytes(labels)
        return declare_official(stl10.STL10, target).load("train", tmp_path)

    return write


@pytest.mark.parametrize("folder", ["stl10", "stl10_binary"])
def test_load_turns_columns_into_rows(load_small, pictures, folder):
    loaded = load_small(bytes([10, 1]), folder)
    torch.testing.assert_close(loaded.images, pictures)
    assert [loaded.classes[label] for label in loaded.labels] == ["truck", "airplane"]


@pytest.mark.parametrize("label", [0, 11])
def test_a_label_out_of_range_is_noticed(load_small, label):
    with pytest.raises(DataError, match=rf"train_y\.bin holds the label {label}, expected 1 to 10"):
        load_small(bytes([1, label]))


def test_fewer_labels_than_images_are_noticed(load_small):
    with pytest.raises(DataError, match="holds 1 labels for 2 images"):
        load_small(bytes([1]))


def test_a_broken_image_is_noticed(pictures):
    with pytest.raises(DataError, match="not a whole number of 27,648-byte images"):
        stl10.parse_images(column_major(pictures)[:-1], PATH)


def test_load_asks_for_the_official_size(tmp_path, pictures):
    (tmp_path / "stl10").mkdir()
    (tmp_path / "stl10" / "train_X.bin").write_bytes(column_major(pictures))
    with pytest.raises(DataError, match=r"expected 138,240,000 bytes, found 55,296.*scn data get stl10"):
        load("stl10", "train", tmp_path)
