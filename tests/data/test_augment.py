import pytest
import torch

from torchscn.data import Augmentation, Draws, resize


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fixed(n: int, down=0, right=0, mirrored=False, row=0, column=0) -> Draws:
    """The same decision for ``n`` images."""
    return Draws(*(torch.tensor([value]).expand(n) for value in (down, right, mirrored, row, column)))


def slow(x: torch.Tensor, draws: Draws, cutout: int) -> torch.Tensor:
    """What :meth:`Augmentation.apply` should give, pixel by pixel."""
    out = torch.zeros_like(x)
    n_images, _, height, width = x.shape
    for n in range(n_images):
        image = x[n].flip(-1) if draws.mirrored[n] else x[n]
        top, left = int(draws.hole_row[n]) - cutout // 2, int(draws.hole_column[n]) - cutout // 2
        for row in range(height):
            for column in range(width):
                from_row, from_column = row - int(draws.down[n]), column - int(draws.right[n])
                inside = 0 <= from_row < height and 0 <= from_column < width
                in_hole = top <= row < top + cutout and left <= column < left + cutout
                if inside and not in_hole:
                    out[n, :, row, column] = image[:, from_row, from_column]
    return out


@pytest.mark.parametrize("per_image", [True, False])
@pytest.mark.parametrize(
    "options", [{"shift": 2}, {"flip": True}, {"cutout": 3}, {"shift": 9, "flip": True, "cutout": 4}]
)
def test_agrees_with_the_pixel_by_pixel_version(options, per_image):
    augmentation = Augmentation(**options, per_image=per_image)
    x = torch.randn(12, 3, 7, 5)
    draws = augmentation.draw(12, 7, 5, seeded())
    torch.testing.assert_close(augmentation.apply(x, draws), slow(x, draws, augmentation.cutout), atol=0, rtol=0)


def test_a_shift_brings_in_zeros():
    x = torch.ones(1, 1, 3, 3)
    moved = Augmentation(shift=2).apply(x, fixed(1, down=1, right=-2))
    assert moved[0, 0].tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 0]]


def test_nothing_asked_changes_nothing():
    x = torch.randn(4, 3, 5, 6)
    torch.testing.assert_close(Augmentation()(x, seeded()), x, atol=0, rtol=0)


def test_result_is_new_and_channels_last():
    x = torch.randn(4, 3, 5, 6)
    before = x.clone()
    out = Augmentation(shift=1, flip=True, cutout=2)(x, seeded())
    assert torch.equal(x, before)
    assert out.is_contiguous(memory_format=torch.channels_last)
    same = Augmentation(shift=1, flip=True, cutout=2)(x.contiguous(memory_format=torch.channels_last), seeded())
    assert torch.equal(out, same)


def test_draws_cover_the_whole_range():
    draws = Augmentation(shift=2, flip=True, cutout=1).draw(2000, 4, 3, seeded())
    assert sorted(draws.down.unique().tolist()) == [-2, -1, 0, 1, 2]
    assert sorted(draws.right.unique().tolist()) == [-2, -1, 0, 1, 2]
    assert sorted(draws.hole_row.unique().tolist()) == [0, 1, 2, 3]
    assert sorted(draws.hole_column.unique().tolist()) == [0, 1, 2]
    assert 900 < int(draws.mirrored.sum()) < 1100


def test_per_batch_draws_once():
    draws = Augmentation(shift=4, flip=True, per_image=False).draw(64, 8, 8, seeded())
    assert len(draws.down) == 64
    assert len(draws.down.unique()) == len(draws.right.unique()) == len(draws.mirrored.unique()) == 1


def test_options_do_not_disturb_each_other():
    plain = Augmentation(shift=3).draw(10, 8, 8, seeded())
    more = Augmentation(shift=3, flip=True, cutout=2).draw(10, 8, 8, seeded())
    assert torch.equal(plain.down, more.down)
    assert torch.equal(plain.right, more.right)


def test_chance_comes_from_the_generator_alone():
    x, augmentation = torch.randn(8, 3, 8, 8), Augmentation(shift=2, flip=True)
    first = augmentation(x, seeded(3))
    torch.manual_seed(99)
    assert torch.equal(first, augmentation(x, seeded(3)))
    assert not torch.equal(first, augmentation(x, seeded(4)))


@pytest.mark.parametrize(("options", "error"), [({"shift": -1}, ValueError), ({"cutout": 2.5}, TypeError)])
def test_bad_options_are_refused(options, error):
    with pytest.raises(error, match="must be a whole number, at least 0; got"):
        Augmentation(**options)


def test_smaller_images_keep_their_mean_and_layout():
    x = torch.randn(4, 3, 32, 24).contiguous(memory_format=torch.channels_last)
    small = resize(x, 0.5)
    assert small.shape == (4, 3, 16, 12)
    assert small.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(resize(torch.ones(2, 1, 9, 9), 0.3), torch.ones(2, 1, 3, 3))
    assert small.std() < 0.75 * x.std()  # averaged, not picked
    assert resize(x, 1.0) is x
