import sys
from pathlib import Path

import pytest

from torchscn.data import DataError, folder, load

Image = pytest.importorskip("PIL.Image")


def picture(path: Path, color="white", size=(6, 4), mode="RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)


def test_train_and_test_folders(tmp_path):
    picture(tmp_path / "train" / "cat" / "1.png", (255, 0, 7))
    picture(tmp_path / "train" / "ant" / "1.bmp", "black")
    picture(tmp_path / "test" / "cat" / "2.PNG", "white")
    train, test = load(f"folder:{tmp_path}"), load(f"folder:{tmp_path}", "test")
    assert train.images.shape == (2, 3, 4, 6)
    assert train.classes == test.classes == ("ant", "cat")
    assert train.labels.tolist() == [0, 1]
    assert train.images[1, :, 0, 0].tolist() == [255, 0, 7]
    assert test.labels.tolist() == [1]


def test_flat_folder_is_split_by_name_alone(tmp_path):
    for i in range(60):
        picture(tmp_path / "a" / f"{i}.png")
        picture(tmp_path / "b" / f"{i}.png")
    before = set(folder_paths(tmp_path, "test"))
    train, test = load(f"folder:{tmp_path}"), load(f"folder:{tmp_path}", "test")
    assert len(train) + len(test) == 120
    assert 12 <= len(test) <= 36
    picture(tmp_path / "a" / "new.png")
    assert before <= set(folder_paths(tmp_path, "test"))
    assert not before & set(folder_paths(tmp_path, "train"))


def folder_paths(root: Path, split: str) -> list[Path]:
    return [image.path for image in folder._list_images(root)[1][split]]


def test_grey_files_keep_one_channel(tmp_path):
    picture(tmp_path / "train" / "a" / "1.png", 9, mode="L")
    picture(tmp_path / "test" / "a" / "1.png", 9, mode="L")
    assert load(f"folder:{tmp_path}").images.shape == (1, 1, 4, 6)


def test_one_colour_file_makes_both_splits_colour(tmp_path):
    picture(tmp_path / "train" / "a" / "1.png", 9, mode="L")
    picture(tmp_path / "test" / "a" / "1.png", "red")
    assert load(f"folder:{tmp_path}").images[0, :, 0, 0].tolist() == [9, 9, 9]


def test_images_are_measured_upright(tmp_path):
    """A photo on its side has the size it is seen in, so it fits the others."""
    picture(tmp_path / "train" / "a" / "1.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (4, 6)).save(tmp_path / "train" / "a" / "2.jpg", exif=exif)
    assert load(f"folder:{tmp_path}").images.shape == (2, 3, 4, 6)


def test_transparent_images_are_put_on_white(tmp_path):
    picture(tmp_path / "train" / "a" / "1.png", (0, 0, 0, 0), mode="RGBA")
    picture(tmp_path / "train" / "a" / "2.png", "black")
    assert load(f"folder:{tmp_path}").images[:, :, 0, 0].tolist() == [[255] * 3, [0] * 3]


def test_another_size_is_named_with_the_remedy(tmp_path):
    picture(tmp_path / "train" / "a" / "1.png")
    picture(tmp_path / "train" / "a" / "2.png", size=(8, 4))
    with pytest.raises(DataError, match=r"2\.png is 8x4 but .*1\.png is 6x4.*\?size=4"):
        load(f"folder:{tmp_path}")
    assert load(f"folder:{tmp_path}?size=5").images.shape == (2, 3, 5, 5)


def test_a_test_image_of_another_size_is_refused_with_the_training_split(tmp_path):
    picture(tmp_path / "train" / "a" / "1.png")
    picture(tmp_path / "test" / "a" / "1.png", size=(8, 4))
    with pytest.raises(DataError, match="8x4"):
        load(f"folder:{tmp_path}", "train")


def test_sixteen_bits_are_refused(tmp_path):
    picture(tmp_path / "train" / "a" / "1.png", 40_000, mode="I;16")
    with pytest.raises(DataError, match="more than 8 bits per pixel"):
        load(f"folder:{tmp_path}")


@pytest.mark.parametrize("n_bytes", [0, 20, 45])
def test_a_broken_image_is_named(tmp_path, n_bytes):
    path = tmp_path / "train" / "a" / "1.png"
    picture(path)
    path.write_bytes(path.read_bytes()[:n_bytes])
    with pytest.raises(DataError, match=r"1\.png cannot be read as an image"):
        load(f"folder:{tmp_path}")


def test_a_class_unknown_to_training_is_named(tmp_path):
    picture(tmp_path / "train" / "a" / "1.png")
    picture(tmp_path / "test" / "b" / "1.png")
    with pytest.raises(DataError, match=r"class without training images; the classes of .* are a"):
        load(f"folder:{tmp_path}")


def test_missing_pieces_are_named(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        load(f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(DataError, match="has no subfolders"):
        load(f"folder:{tmp_path}")
    (tmp_path / "train" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match="a holds no images"):
        load(f"folder:{tmp_path}")
    picture(tmp_path / "train" / "a" / "1.png")
    with pytest.raises(DataError, match=r"has no test images. Put images into"):
        load(f"folder:{tmp_path}", "test")


@pytest.mark.parametrize("name", ["folder:", "folder:x?size=-1", "folder:x?size=big", "folder:x?sise=4"])
def test_a_garbled_name_is_refused(name):
    with pytest.raises(DataError, match="write folder:PATH"):
        load(name)


@pytest.mark.parametrize("size", [0, 1025, 999_999_999])
def test_an_absurd_size_is_refused(tmp_path, size):
    picture(tmp_path / "train" / "a" / "1.png")
    with pytest.raises(DataError, match=f"asks for images of {size}x{size}; size must be from 1 to 1024"):
        load(f"folder:{tmp_path}?size={size}")


def test_without_pillow_the_error_says_what_to_install(tmp_path, monkeypatch):
    picture(tmp_path / "train" / "a" / "1.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"pip install torchscn\[images\]"):
        load(f"folder:{tmp_path}")
