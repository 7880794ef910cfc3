"""Where patches are, and what is asked of images."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.testing import assert_close

from torchscn.patches import Geometry

IMAGES = [
    {"kernel_size": 3},
    {"kernel_size": (1, 5), "stride": (2, 1)},
    {"kernel_size": 2, "padding": 0},
    {"kernel_size": 3, "dilation": 2, "stride": 2},
]


def make(n_dims, kernel_size=3, stride=1, padding=None, dilation=1):
    return Geometry.make(n_dims, kernel_size, stride, padding, dilation)


@pytest.mark.parametrize("numbers", IMAGES)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_correlations_are_those_of_the_patches_laid_out(numbers, batch):
    geometry = make(2, **numbers)
    x = torch.randn(*batch, 3, 9, 8, dtype=torch.float64)
    dictionary = torch.randn(5, 3, *geometry.kernel_size, dtype=torch.float64)
    patches = F.unfold(x, geometry.kernel_size, geometry.dilation, geometry.padding, geometry.stride)
    expected = (dictionary.flatten(1) @ patches).mT
    assert_close(geometry.correlate(x, dictionary).flatten(-3, -2), expected)


def test_no_padding_given_keeps_the_size():
    assert make(2, (3, 5), dilation=2).padding == (2, 4)
    assert make(1, 7).padding == (3,)
    with pytest.raises(ValueError, match="even"):
        make(2, 2)


def test_one_number_per_dimension():
    with pytest.raises(ValueError, match="kernel_size must be one number or 2"):
        make(2, (3, 3, 3))
    with pytest.raises(TypeError, match="stride must be a whole number"):
        make(1, stride=1.5)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2, 3, 8), "batch optional"),
        ((2, 4, 8, 8), "(batch, 3, height, width)"),
        ((1, 3, 2, 8), "smaller than one patch"),
    ],
)
def test_images_that_do_not_fit(shape, words):
    with pytest.raises(ValueError, match=r".") as caught:
        make(2, padding=0).check_input(torch.zeros(shape), in_channels=3)
    assert words in str(caught.value)
