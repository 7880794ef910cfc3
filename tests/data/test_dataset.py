import pytest

from torchscn.data import DataError
from torchscn.data.digits import DIGITS
from torchscn.data.stl10 import STL10


def test_status_sees_sizes_and_on_request_md5s(tmp_path, declare_official):
    target = tmp_path / "stl10"
    target.mkdir()
    for file in STL10.source.files:
        (target / file.name).write_bytes(b"abc")
    dataset = declare_official(STL10, target)
    assert dataset.status(tmp_path, verify=True).found

    (target / "test_y.bin").write_bytes(b"abd")
    assert dataset.status(tmp_path).found
    assert "test_y.bin is not the official" in dataset.status(tmp_path, verify=True).problem

    (target / "test_y.bin").write_bytes(b"ab")
    entry = dataset.status(tmp_path)
    assert not entry.found
    assert "test_y.bin is truncated" in entry.problem


def test_a_data_set_loads_itself():
    pytest.importorskip("sklearn")
    assert DIGITS.load("test").name == DIGITS.name


@pytest.mark.parametrize("dataset", [STL10, DIGITS])
def test_an_unknown_split_is_refused(dataset, tmp_path):
    with pytest.raises(DataError, match=r"split 'trian' is not known.*Did you mean 'train'\?"):
        dataset.load("trian", tmp_path)
