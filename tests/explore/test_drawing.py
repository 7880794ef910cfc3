"""Drawings are placed as the digits of the data set are."""

import pytest
import torch
from torch import Tensor

from torchscn.explore import Frame, center_drawing, choose_frame

MNIST = choose_frame("mnist", (28, 28))


def drawn(top: int, left: int, height: int, width: int, side: int = 280) -> Tensor:
    """A filled rectangle."""
    ink = torch.zeros(side, side, dtype=torch.uint8)
    ink[top : top + height, left : left + width] = 255
    return ink


def letter_l(height: int = 200, width: int = 120, pen: int = 24) -> Tensor:
    """A shape without symmetry."""
    ink = drawn(20, 30, height, pen)
    ink[20 + height - pen : 20 + height, 30 : 30 + width] = 255
    return ink


def extent(image: Tensor) -> tuple[int, int, int, int]:
    """First row, first column, height and width of what is not black."""
    rows, columns = image[0].any(1).nonzero(), image[0].any(0).nonzero()
    return int(rows[0]), int(columns[0]), int(rows[-1] - rows[0]) + 1, int(columns[-1] - columns[0]) + 1


def center_of_mass(image: Tensor) -> tuple[float, float]:
    mass, places = image[0].double(), torch.arange(image.shape[-1]).double()
    return float((mass.sum(1) * places).sum() / mass.sum()), float((mass.sum(0) * places).sum() / mass.sum())


@pytest.mark.parametrize(
    ("data", "size", "frame"),
    [
        ("mnist", (28, 28), Frame((28, 28), (20, 20), by_mass=True)),
        ("digits", (8, 8), Frame((8, 8), (8, 8), by_mass=False)),
        ("folder:letters", (56, 28), Frame((56, 28), (40, 20), by_mass=True)),
        ("folder:letters", (12, 12), Frame((12, 12), (12, 12), by_mass=False)),
        ("digits", (32, 32), Frame((32, 32), (32, 32), by_mass=False)),
    ],
)
def test_the_frame_follows_the_data_set_or_else_the_size(data, size, frame):
    assert choose_frame(data, size) == frame


@pytest.mark.parametrize(
    ("height", "width", "expected"), [(200, 100, (20, 10)), (50, 200, (5, 20)), (24, 24, (20, 20))]
)
def test_a_digit_fills_the_box_and_keeps_its_proportions(height, width, expected):
    assert extent(center_drawing(drawn(3, 7, height, width), MNIST))[2:] == expected


def test_the_mass_is_in_the_middle_of_the_image():
    """As in MNIST, where pixels are counted from 0 and the centre of mass is at 14."""
    down, right = center_of_mass(center_drawing(letter_l(), MNIST))
    assert down == pytest.approx(14, abs=0.51)
    assert right == pytest.approx(14, abs=0.51)
    top, left, height, width = extent(center_drawing(letter_l(), MNIST))
    assert (top + height / 2, left + width / 2) != pytest.approx((14, 14), abs=1)


def test_place_and_size_of_a_drawing_do_not_matter():
    one = center_drawing(letter_l(), MNIST)
    moved = center_drawing(letter_l().roll((50, 70), (0, 1)), MNIST)
    assert torch.equal(one, moved)
    larger = letter_l().repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert (center_drawing(larger, MNIST).int() - one.int()).abs().max() <= 2


def test_fine_strokes_become_grey_instead_of_getting_lost():
    ink = torch.zeros(280, 280, dtype=torch.uint8)
    ink[40:240:7, 40:240] = ink[40:240, 40:240:7] = 255
    inside = center_drawing(ink, MNIST)[0, 6:22, 6:22].double()
    assert float(inside.mean()) == pytest.approx(255 * (1 - (6 / 7) ** 2), rel=0.05)
    assert inside.std() < 20


def test_nothing_is_cut_off_however_unbalanced():
    ink = drawn(40, 40, 200, 40)
    ink[40:46, 40:240] = 255  # a thin arm, which moves the mass only a little
    assert extent(center_drawing(ink, MNIST))[1:] == (8, 20, 20)  # at the right edge


def test_small_frames_are_filled_from_edge_to_edge():
    image = center_drawing(drawn(40, 100, 200, 100), choose_frame("digits", (8, 8)))
    assert extent(image) == (0, 2, 8, 4)
    assert image.max() == 255


@pytest.mark.parametrize("frame", [MNIST, choose_frame("digits", (8, 8))])
def test_an_empty_drawing_is_a_black_image(frame):
    image = center_drawing(torch.full((280, 280), 5, dtype=torch.uint8), frame)
    assert image.shape == (1, *frame.size)
    assert image.dtype == torch.uint8
    assert not image.any()


@pytest.mark.parametrize("place", [0, 279])
def test_a_single_point_is_a_drawing(place):
    assert center_drawing(drawn(place, place, 1, 1), MNIST).any()
