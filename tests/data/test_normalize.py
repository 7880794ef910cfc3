import pytest
import torch

from torchscn.data import Normalization


@pytest.fixture
def pictures() -> torch.Tensor:
    return torch.randint(0, 256, (20, 3, 6, 5), dtype=torch.uint8)


@pytest.mark.parametrize("per_pixel", [False, True])
def test_training_images_are_centred(pictures, per_pixel, monkeypatch):
    monkeypatch.setattr("torchscn.data.normalize.PIECE", 7)
    normalization = Normalization.fit(pictures, per_pixel=per_pixel)
    assert normalization.mean.shape == ((3, 6, 5) if per_pixel else (3, 1, 1))
    axes = (0,) if per_pixel else (0, 2, 3)
    means = normalization(pictures).double().mean(axes)
    torch.testing.assert_close(means, torch.zeros_like(means), atol=1e-6, rtol=0)


@pytest.mark.parametrize("per_pixel", [False, True])
def test_division_brings_each_channel_to_unit_spread(pictures, per_pixel):
    pictures[:, 1] //= 3
    x = Normalization.fit(pictures, per_pixel=per_pixel, divide=True)(pictures).double()
    torch.testing.assert_close(x.square().mean((0, 2, 3)), torch.ones(3, dtype=torch.float64), atol=1e-5, rtol=0)


def test_formula_type_and_memory(pictures):
    mean, std = torch.rand(3, 6, 5), torch.rand(3, 1, 1) + 0.5
    x = Normalization(mean, std)(pictures)
    torch.testing.assert_close(x, (pictures / 255 - mean) / std, atol=1e-6, rtol=1e-6)
    assert x.dtype == torch.float32
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_without_division_the_scale_is_one(pictures):
    assert torch.equal(Normalization.fit(pictures).std, torch.ones(3, 1, 1))


def test_a_constant_channel_stays_finite():
    grey = torch.full((4, 1, 2, 2), 100, dtype=torch.uint8)
    torch.testing.assert_close(Normalization.fit(grey, divide=True)(grey), torch.zeros(4, 1, 2, 2), atol=1e-6, rtol=0)


def test_state_goes_round(pictures):
    normalization = Normalization.fit(pictures, per_pixel=True, divide=True)
    again = Normalization.from_state(normalization.state())
    assert torch.equal(again(pictures), normalization(pictures))


def test_bad_input_is_refused(pictures):
    normalization = Normalization.fit(pictures)
    with pytest.raises(TypeError, match=r"uint8 tensor .* got torch.float32"):
        normalization(pictures.float())
    with pytest.raises(ValueError, match="no images to measure"):
        Normalization.fit(pictures[:0])
    with pytest.raises(ValueError, match=r"got \(3,\) and \(3,\)"):
        Normalization(torch.zeros(3), torch.ones(3))


def test_mean_per_pixel_goes_with_its_size_only(pictures):
    normalization = Normalization.fit(pictures, per_pixel=True)
    with pytest.raises(ValueError, match=r"per pixel.*not go with images of 3 x 3"):
        normalization(pictures[:, :, :3, :3])
