import gzip
import struct
from pathlib import Path

import pytest
import torch

from torchscn.data import DataError, fashion_mnist, load, mnist
from torchscn.data.idx import parse_idx

PATH = Path("some-idx-file")


def idx(values: torch.Tensor) -> bytes:
    """The values as an idx file of unsigned bytes."""
    magic = bytes([0, 0, 8, values.ndim])
    return magic + struct.pack(f">{values.ndim}I", *values.shape) + bytes(values.flatten().tolist())


@pytest.fixture
def pictures() -> torch.Tensor:
    return torch.randint(0, 256, (4, 28, 28), dtype=torch.uint8)


@pytest.fixture
def load_small(tmp_path, declare_official, pictures):
    """Write a data folder with four training images, ``labels`` and packing as told, and load it."""

    def write(labels=(5, 0, 9, 1), folder="mnist", packed=True):
        target = tmp_path / folder
        target.mkdir(parents=True)
        contents = {"train-images-idx3-ubyte": idx(pictures), "train-labels-idx1-ubyte": idx(torch.tensor(labels))}
        for name, content in contents.items():
            packed_name, packed_content = (f"{name}.gz", gzip.compress(content)) if packed else (name, content)
            (target / packed_name).write_bytes(packed_content)
        return declare_official(mnist.MNIST, target).load("train", tmp_path)

    return write


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
def test_load_reads_both_layouts_packed_or_not(load_small, pictures, folder, packed):
    loaded = load_small(folder=folder, packed=packed)
    torch.testing.assert_close(loaded.images, pictures[:, None])
    assert loaded.labels.tolist() == [5, 0, 9, 1]
    assert loaded.classes[5] == "5"


def test_load_refuses_a_label_above_nine(load_small):
    with pytest.raises(DataError, match=r"train-labels.* holds the label 10, expected 0 to 9"):
        load_small(labels=(5, 0, 9, 10))


def test_load_refuses_fewer_labels_than_images(load_small):
    with pytest.raises(DataError, match="holds 3 labels for 4 images"):
        load_small(labels=(5, 0, 9))


def test_load_refuses_files_that_are_not_the_official_ones(tmp_path, pictures):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(idx(pictures))
    with pytest.raises(DataError, match="truncated: expected 47,040,016 bytes, found 3,152"):
        load("mnist", "train", tmp_path)


def test_swapped_files_are_noticed(pictures):
    with pytest.raises(DataError, match=r"some-idx-file has magic number 2051, expected 2049 .*swapped"):
        parse_idx(idx(pictures), PATH, n_dims=1, name="mnist")


@pytest.mark.parametrize("n_bytes", [8, 15, 16, 100])
def test_a_short_body_is_noticed(pictures, n_bytes):
    with pytest.raises(DataError, match="some-idx-file announces"):
        parse_idx(idx(pictures)[:n_bytes], PATH, n_dims=3, name="mnist")


def test_an_empty_file_is_noticed():
    with pytest.raises(DataError, match="magic number 0"):
        parse_idx(b"", PATH, n_dims=3, name="mnist")


@pytest.mark.parametrize("cut", [slice(0, -200), slice(0, 12)])
def test_a_broken_gzip_is_noticed(pictures, cut):
    with pytest.raises(DataError, match="some-idx-file cannot be unpacked"):
        parse_idx(gzip.compress(idx(pictures))[cut], PATH, n_dims=3, name="mnist")


def test_real_files(real_data):
    train, test = load("mnist", "train"), load("mnist", "test", real_data)
    assert train.images.shape == (60_000, 1, 28, 28)
    assert test.images.shape == (10_000, 1, 28, 28)
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert float(train.images.double().mean() / 255) == pytest.approx(0.1307, abs=1e-4)


def test_fashion_mnist_is_read_from_its_packed_files(tmp_path, declare_official, pictures):
    target = tmp_path / "FashionMNIST" / "raw"
    target.mkdir(parents=True)
    (target / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pictures)))
    (target / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(torch.tensor([9, 0, 1, 2]))))
    loaded = declare_official(fashion_mnist.FASHION_MNIST, target).load("train", tmp_path)
    torch.testing.assert_close(loaded.images, pictures[:, None])
    assert [loaded.classes[label] for label in loaded.labels] == ["ankle boot", "T-shirt/top", "trouser", "pullover"]
    with pytest.raises(DataError, match=r"truncated: expected 26,421,880 bytes.* scn data get fashion_mnist"):
        load("fashion_mnist", "train", tmp_path)
