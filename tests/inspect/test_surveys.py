"""One pass over many images, and where atoms are used."""

import pytest
import torch

from torchscn import create_model, data, sparse_code
from torchscn.inspect import AtomUse, crop, dissect, look, most_used, some_images, strongest_uses, survey


@pytest.fixture(scope="module")
def seen(network, images):
    return survey(network, images, places=3)


def test_a_survey_is_what_looking_at_all_images_gives(network, images, seen):
    for use, whole in zip(seen.layers, look(network, network.preprocess(images.images)), strict=True):
        torch.testing.assert_close(use.pooled, whole.codes.mean((2, 3)), atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(use.largest, whole.codes.amax((2, 3)), atol=1e-2, rtol=1e-2)
        there = whole.codes.flatten(2).gather(2, use.place[:, :, None])[..., 0]
        torch.testing.assert_close(there, use.largest, atol=1e-2, rtol=1e-2)
        assert use.active == pytest.approx(float((whole.codes != 0).float().mean()), abs=1e-3)
        assert use.n_columns == whole.codes.shape[3]


@pytest.mark.parametrize("layer", [1, 2, 7, 11])  # 7 and 11 have a stride
def test_patches_belong_to_their_codes(seen, images, layer):
    use = seen.layers[layer - 1]
    module, places = use.stage.layer, use.places
    codes = sparse_code(places.patches, module.dictionary.flatten(1), module.lam1, module.lam2).detach()
    error = (codes - places.codes).norm(dim=1) / codes.norm(dim=1).clamp(min=1e-6)
    assert float(error.max()) < 0.1  # layers solve to 0.01
    assert len(places.codes) == 3 * len(images)
    assert places.labels.tolist() == images.labels.repeat_interleave(3).tolist()


def test_dead_atoms_are_those_that_no_image_uses(network, images):
    module = dissect(network).stages[0].layer
    with torch.no_grad():
        kept = module.dictionary[1].clone()
        module.dictionary[1] = 0
    try:
        dead = survey(network, images.take(range(10))).layers[0].is_dead()
    finally:
        with torch.no_grad():
            module.dictionary[1] = kept
    assert dead.tolist() == [False, True, False, False]


def test_strongest_uses_are_from_different_images(seen):
    use = seen.layers[3]
    found = strongest_uses(use, 2, 9)
    assert len({part.image for part in found}) == len(found) == 9
    assert [part.code for part in found] == sorted((part.code for part in found), reverse=True)
    assert found[0].code == pytest.approx(float(use.largest[:, 2].max()))


def test_most_used_atoms_come_first(seen):
    use = seen.layers[0]
    shares = use.pooled.mean(0)
    assert most_used(use, 99) == shares.argsort(descending=True).tolist()


def test_a_crop_is_what_the_first_layer_saw(network, images, seen):
    """Normalized, the cropped pixels are the patch; where the image ends there are zeros instead."""
    use = seen.layers[0]
    norm, *_ = network.blocks[0]
    for found in strongest_uses(use, 0, 9):
        pixels = crop(images, found, use.stage)
        assert pixels.shape == (1, 3, 3)
        x = norm(network.preprocess(images.images[found.image][None]))
        patch = torch.nn.functional.pad(x, [1] * 4)[0, :, found.row : found.row + 3, found.column : found.column + 3]
        rows, columns = found.row + torch.arange(-1, 2), found.column + torch.arange(-1, 2)
        inside = ((rows >= 0) & (rows < 8))[:, None] & ((columns >= 0) & (columns < 8))
        cut = norm(network.normalization(pixels[None]))[0]
        torch.testing.assert_close(cut[:, inside], patch[:, inside])
        assert (pixels[:, ~inside] == 128).all()


def test_some_images_are_spread_over_the_set(images):
    assert some_images(images, 3).labels.tolist() == images.labels[[0, 39, 79]].tolist()
    assert len(some_images(images, 1000)) == len(images)


def test_images_that_do_not_belong_to_the_network(network, images):
    with pytest.raises(ValueError, match="not trained, so it has no classes"):
        survey(create_model("scn1", in_channels=1), images)
    with pytest.raises(ValueError, match="looks at images of 1 x 8 x 8"):
        survey(network, images.take([]))
    other = type(images)("letters", images.images, images.labels, tuple("abcdefghij"))
    with pytest.raises(ValueError, match="is this the data"):
        survey(network, other)


def test_codes_keep_their_sign(images):
    network = create_model("scn1", in_channels=1, constraint="signed", stem=4)
    network.remember(data.Normalization.fit(images.images), images.classes, (8, 8))
    use = survey(network.eval(), images).layers[0]
    assert float(use.largest.min()) < 0 < float(use.largest.max())
    assert most_used(use, 4) == use.usage.argsort(descending=True).tolist()
    strongest = strongest_uses(use, 0, 20)
    assert [abs(part.code) for part in strongest] == sorted((abs(part.code) for part in strongest), reverse=True)
    assert [part.code for part in strongest] == [float(use.largest[part.image, 0]) for part in strongest]


@pytest.mark.parametrize(
    "wrong", [lambda n, i: survey(n, i, places=0), lambda n, i: some_images(i, 0), lambda n, i: some_images(i, -1)]
)
def test_counts_below_one_are_refused(network, images, wrong):
    with pytest.raises(ValueError, match="at least 1"):
        wrong(network, images)


def test_an_atom_that_does_not_exist(seen):
    with pytest.raises(ValueError, match="layer 1 has atoms 0 to 3; got 9"):
        strongest_uses(seen.layers[0], 9)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (7, 7), (0, 7), (3, 4)])
def test_crops_at_the_border_are_filled_up(network, images, row, column):
    stage = dissect(network).stages[1]  # sees 5 x 5 pixels
    grey = torch.full((12, 12), 128, dtype=torch.uint8)
    grey[2:10, 2:10] = images.images[5, 0]
    cut = crop(images, AtomUse(5, row, column, 1.0), stage)
    assert torch.equal(cut[0], grey[row : row + 5, column : column + 5])
