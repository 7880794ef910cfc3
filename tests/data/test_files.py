import hashlib

import pytest

from torchscn.data import DataError
from torchscn.data.files import OfficialFile, Source, find_data_dir, md5_of_file, read_checked, read_split

CONTENT = b"twelve bytes"
FILE = OfficialFile("a.bin", hashlib.md5(CONTENT).hexdigest(), len(CONTENT))
SOURCE = Source("letters", ("letters", "letters-binary"), (FILE,), (), "http://localhost/")


def test_argument_comes_before_environment(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.setenv("TORCHSCN_DATA", str(tmp_path / "a"))
    assert find_data_dir(None) == tmp_path / "a"
    assert find_data_dir(str(tmp_path / "b")) == tmp_path / "b"


def test_no_data_folder_says_how_to_set_one():
    with pytest.raises(DataError, match=r"Pass data_dir=.*TORCHSCN_DATA"):
        find_data_dir(None)


def test_missing_data_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSCN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere \(TORCHSCN_DATA\) does not exist"):
        find_data_dir(None)
    assert find_data_dir(None, create=True).is_dir()


@pytest.mark.parametrize("folder", SOURCE.folders)
def test_both_layouts_are_found(tmp_path, folder):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "a.bin").write_bytes(CONTENT)
    assert read_split(SOURCE, "train", tmp_path) == [(tmp_path / folder / "a.bin", CONTENT)]


def test_an_empty_folder_does_not_hide_the_full_one(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters-binary").mkdir()
    (tmp_path / "letters-binary" / "a.bin").write_bytes(CONTENT)
    assert SOURCE.folder(tmp_path) == tmp_path / "letters-binary"


def test_missing_file_names_the_places_and_the_command(tmp_path):
    with pytest.raises(DataError, match=r"a\.bin is missing.*letters/ or letters-binary/.*scn data get letters"):
        read_checked(FILE, tmp_path, SOURCE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENT[:-1], "is truncated: expected 12 bytes, found 11"),
        (CONTENT + b"!", "is too long: expected 12 bytes, found 13"),
        (CONTENT.upper(), f"not the official a.bin: expected md5 {FILE.md5}, found "),
    ],
)
def test_wrong_content_is_refused(tmp_path, content, message):
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.bin.*{message}.*scn data get letters"):
        read_checked(FILE, tmp_path, SOURCE)


def test_unpacked_form_has_its_own_size_and_md5(tmp_path):
    packed = OfficialFile("a.bin.gz", "0" * 32, 5, unpacked=FILE)
    (tmp_path / "a.bin").write_bytes(CONTENT)
    assert read_checked(packed, tmp_path, SOURCE) == (tmp_path / "a.bin", CONTENT)


def test_md5_of_a_file_longer_than_one_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr("torchscn.data.files.CHUNK_BYTES", 5)
    (tmp_path / "a.bin").write_bytes(CONTENT)
    assert md5_of_file(tmp_path / "a.bin") == FILE.md5
