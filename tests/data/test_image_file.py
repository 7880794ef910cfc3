import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from torchscn.data import DataError, find_images, image_file, read_image
from torchscn.data.image_file import decode_image

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")


def save_oriented(path: Path, orientation: int, size: tuple[int, int] = (6, 4)) -> None:
    """An image without symmetry whose EXIF entry says how the camera was held."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    ramp = torch.arange(3 * size[0] * size[1], dtype=torch.uint8).reshape(size[1], size[0], 3)
    Image.fromarray(ramp.numpy()).save(path, exif=exif)


@pytest.mark.parametrize("suffix", ["png", "tif", "webp", "jpg"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_read_and_measured_as_they_were_seen(tmp_path, orientation, suffix):
    path = tmp_path / f"1.{suffix}"
    save_oriented(path, orientation)
    with Image.open(path) as stored:
        seen = ImageOps.exif_transpose(stored).convert("RGB")
    size = (seen.height, seen.width)
    assert size == ((4, 6) if orientation < 5 else (6, 4))
    assert read_image(path, 3, size).permute(1, 2, 0).tolist() == np.asarray(seen).tolist()
    measured = image_file.measure_image(path)
    assert (measured.height, measured.width) == size


def test_a_damaged_exif_entry_does_no_harm(tmp_path):
    Image.new("RGB", (6, 4), "red").save(tmp_path / "1.jpg", exif=b"Exif\x00\x00no TIFF header")
    assert read_image(tmp_path / "1.jpg", 3, (4, 6)).shape == (3, 4, 6)
    assert image_file.measure_image(tmp_path / "1.jpg").width == 6


@pytest.mark.parametrize(("mode", "half_black"), [("RGBA", (0, 0, 0, 128)), ("LA", (0, 128))])
@pytest.mark.parametrize("channels", [1, 3])
def test_transparent_pixels_show_white(tmp_path, mode, half_black, channels):
    image = Image.new(mode, (2, 1))  # transparent black
    image.putpixel((1, 0), half_black)
    image.save(tmp_path / "1.png")
    assert read_image(tmp_path / "1.png", channels, (1, 2)).tolist() == [[[255, 127]]] * channels


@pytest.mark.parametrize("channels", [1, 3])
def test_a_transparent_palette_shows_white(tmp_path, channels):
    image = Image.new("P", (2, 1), 1)
    image.putpalette([9, 9, 9, 60, 60, 60])
    image.putpixel((0, 0), 0)
    image.save(tmp_path / "1.png", transparency=bytes([0, 255]))
    assert read_image(tmp_path / "1.png", channels, (1, 2)).tolist() == [[[255, 60]]] * channels


def test_a_transparent_colour_shows_white(tmp_path):
    Image.new("RGB", (1, 1), (1, 2, 3)).save(tmp_path / "1.png", transparency=(1, 2, 3))
    assert read_image(tmp_path / "1.png", 3, (1, 1)).flatten().tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    ("mode", "color", "suffix", "expected"),
    [("CMYK", (0, 255, 255, 0), "tif", [255, 0, 0]), ("1", 1, "png", [255] * 3), ("P", 0, "png", [0] * 3)],
)
def test_other_modes(tmp_path, mode, color, suffix, expected):
    Image.new(mode, (1, 1), color).save(tmp_path / f"1.{suffix}")
    assert read_image(tmp_path / f"1.{suffix}", 3, (1, 1)).flatten().tolist() == expected


def claim(path: Path, width: int, height: int) -> None:
    """A PNG file of a few bytes that claims to be large."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))


@pytest.mark.parametrize("side", [8001, 12_000, 60_000])  # over our bound, Pillow's warning, Pillow's error
def test_an_image_that_would_fill_the_memory_is_refused(tmp_path, side):
    claim(tmp_path / "1.png", side, side)
    for look in (image_file.measure_image, lambda path: read_image(path, 1, (4, 4))):
        with pytest.raises(DataError, match=r"1\.png has more than 64 million pixels"):
            look(tmp_path / "1.png")


@pytest.mark.parametrize("suffix", ["png", "webp", "jpg"])
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_in_memory_is_read_like_a_file(tmp_path, suffix, orientation, channels):
    path = tmp_path / f"1.{suffix}"
    save_oriented(path, orientation)
    assert torch.equal(decode_image(path.read_bytes(), channels, (5, 3)), read_image(path, channels, (5, 3)))


@pytest.mark.parametrize("suffix", ["gif", "bmp"])
def test_more_formats_in_memory(tmp_path, suffix):
    Image.new("RGB", (6, 4), "red").save(tmp_path / f"1.{suffix}")
    assert decode_image((tmp_path / f"1.{suffix}").read_bytes(), 3, (1, 1)).flatten().tolist() == [255, 0, 0]


def test_transparent_pixels_in_memory_show_white(tmp_path):
    Image.new("RGBA", (1, 1)).save(tmp_path / "1.png")
    assert decode_image((tmp_path / "1.png").read_bytes(), 3, (1, 1)).flatten().tolist() == [255] * 3


@pytest.mark.parametrize("suffix", ["tif", "ppm", "pdf", "tga"])
def test_rare_formats_are_not_read_from_memory(tmp_path, suffix):
    Image.new("RGB", (6, 4), "red").save(tmp_path / f"1.{suffix}")
    with pytest.raises(DataError, match="cannot be read as an image; PNG, JPEG, GIF, BMP and WebP files can"):
        decode_image((tmp_path / f"1.{suffix}").read_bytes(), 3, (4, 4))


def test_what_is_no_image_in_memory_is_refused(tmp_path):
    save_oriented(tmp_path / "1.png", 1, (60, 40))
    for content in (b"", b"text", (tmp_path / "1.png").read_bytes()[:-800]):
        with pytest.raises(DataError, match=r"^this cannot be read as an image"):
            decode_image(content, 3, (4, 4))
    claim(tmp_path / "1.png", 9000, 9000)
    with pytest.raises(DataError, match=r"^the image has more than 64 million pixels"):
        decode_image((tmp_path / "1.png").read_bytes(), 3, (4, 4))
    with pytest.raises(DataError, match="2 were requested"):
        decode_image(b"", 2, (4, 4))


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    Image.new("RGB", (6, 4), "red").save(tmp_path / "1.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    for read in (lambda: read_image(tmp_path / "1.png", 3, (4, 4)), lambda: decode_image(b"", 3, (4, 4))):
        with pytest.raises(DataError, match=r"pip install torchscn\[images\]"):
            read()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"1\.png does not exist"):
        read_image(tmp_path / "1.png", 1, (4, 4))


def test_only_so_many_channels(tmp_path):
    with pytest.raises(DataError, match="4 were requested"):
        read_image(tmp_path / "1.png", 4, (1, 1))


def test_images_are_found_in_all_folders(tmp_path):
    for name in ("b/2.PNG", "a.jpg", "b/c/1.gif", "notes.txt", ".hidden.png", ".thumbnails/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)]
    assert found == ["a.jpg", "b/2.PNG", "b/c/1.gif"]


def test_found_images_are_sorted(tmp_path):
    for number in range(50):
        (tmp_path / f"{number * 37 % 50}.png").touch()
    assert find_images(tmp_path) == sorted(tmp_path.iterdir())


def test_an_empty_folder_is_an_error(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=r"holds no images \(\.bmp, "):
        find_images(tmp_path)
