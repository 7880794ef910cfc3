"""Back from codes to pixels, compared with the same steps by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from torchscn import Network, Row
from torchscn.inspect import NoInverseError, dissect, look, rebuild, rebuild_all, synthesize, to_pixels
from torchscn.inspect.stages import Stage


def make(table: list[Row], in_channels: int = 2) -> Network:
    network = Network(table, 3, in_channels).double().eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return network


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(7, 7), (8, 6)])
def test_rebuilding_from_the_first_layer_is_reconstruct_folded(stride, size):
    network = make([Row("sparse", 5, stride)])
    norm, layer = network.blocks[0]
    x = torch.randn(2, 2, *size, dtype=torch.float64)
    (seen,) = look(network, x)
    patches = layer.reconstruct(seen.codes).detach()
    fold = {"output_size": size, "kernel_size": 3, "stride": stride, "padding": 1}
    total = F.fold(patches.flatten(2), **fold)
    cover = F.fold(torch.ones_like(patches).flatten(2), **fold)
    mean, std = norm.running_mean[:, None, None], (norm.running_var + norm.eps).sqrt()[:, None, None]
    torch.testing.assert_close(rebuild(network, seen.codes, 1, size), total / cover * std + mean)


def matrix(stage: Stage, codes_side: int) -> tuple[np.ndarray, int]:
    """The map from codes on a grid to the (unpadded) input as a matrix, written down entry by entry."""
    atoms, stride = stage.atoms().numpy(), stage.window.stride
    n_atoms, n_channels = atoms.shape[:2]
    side = (codes_side - 1) * stride + 3
    made = np.zeros((n_channels, side, side, n_atoms, codes_side, codes_side))
    cover = np.zeros((side, side))
    for row in range(codes_side):
        for column in range(codes_side):
            top, left = row * stride, column * stride
            cover[top : top + 3, left : left + 3] += 1
            made[:, top : top + 3, left : left + 3, :, row, column] += atoms.transpose(1, 2, 3, 0)
    made /= cover[None, :, :, None, None, None]
    made *= np.sqrt(stage.norm.running_var.numpy() + stage.norm.eps)[:, None, None, None, None, None]
    return made, side


@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (1, 2)])
def test_synthesis_through_two_layers_is_the_product_of_their_matrices(strides):
    network = make([Row("sparse", 3, strides[0]), Row("sparse", 4, strides[1])])
    first, second = dissect(network).stages
    upper, middle_side = matrix(second, 7)
    lower, _ = matrix(first, middle_side)
    centre = upper[..., 3, 3]  # far enough from the border of the grid
    product = np.einsum("chwdij,dija->achw", lower, centre)
    top = 3 * strides[1] * strides[0]
    size = second.field.size
    window = product[:, :, top : top + size, top : top + size]
    np.testing.assert_allclose(synthesize(network, 2).numpy(), window, rtol=1e-10, atol=1e-12)
    assert np.abs(product).sum() == pytest.approx(np.abs(window).sum())
    np.testing.assert_array_equal(synthesize(network, 2, [2]).numpy(), synthesize(network, 2).numpy()[[2]])


def test_differences_are_rebuilt_without_means():
    network = make([Row("sparse", 4), Row("sparse", 5, 2)])
    one, other = (list(look(network, torch.randn(1, 2, 8, 8, dtype=torch.float64)))[1].codes for _ in range(2))
    apart = rebuild(network, one, 2, (8, 8)) - rebuild(network, other, 2, (8, 8))
    torch.testing.assert_close(rebuild(network, one - other, 2, (8, 8), differences=True), apart)


def test_rebuild_all_measures_what_it_says(network, images):
    x = network.preprocess(images.images[:8])
    third = rebuild_all(network, x)[2]
    expected = (third.images - x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    torch.testing.assert_close(third.error, expected)
    ours, theirs = third.own[3].flatten().numpy(), (x - x.mean(0))[3].flatten().numpy()
    assert float(third.likeness[3]) == pytest.approx(np.corrcoef(ours, theirs)[0, 1], abs=1e-5)
    *_, seen = look(network, x, last=3)
    assert float(third.active[0]) == pytest.approx(float((seen.codes[0] > 0).sum(0).float().mean()))


def test_the_first_layer_of_a_trained_network_keeps_the_image(network, images):
    rebuilt = rebuild_all(network, network.preprocess(images.images[:16]))
    assert float(rebuilt[0].likeness.mean()) > 0.8
    assert float(rebuilt[-1].likeness.mean()) < float(rebuilt[0].likeness.mean())


def test_pixels_come_back(network, images):
    x = network.preprocess(images.images[:4])
    torch.testing.assert_close(to_pixels(network, x), images.images[:4] / 255)


def test_convolutions_have_no_inverse():
    network = make([Row("sparse", 3), Row("conv", 4)])
    with pytest.raises(NoInverseError, match="layer 2 is a convolution"):
        synthesize(network, 2)
    with pytest.raises(NoInverseError, match="no inverse of its own"):
        rebuild(network, torch.zeros(1, 4, 8, 8, dtype=torch.float64), 2, (8, 8))
    assert synthesize(network, 1).shape == (3, 2, 3, 3)


def test_what_is_not_known_is_asked_for():
    network = make([Row("sparse", 3)])
    with pytest.raises(ValueError, match="give size="):
        rebuild(network, torch.zeros(1, 3, 8, 8, dtype=torch.float64), 1)
    with pytest.raises(ValueError, match="how images were normalized"):
        to_pixels(network, torch.zeros(1, 2, 8, 8))
    with pytest.raises(ValueError, match="atoms 0 to 2; got 3"):
        synthesize(network, 1, [3])


@pytest.mark.parametrize("shape", [(1, 4, 8, 8), (1, 3, 4, 4), (3, 8, 8)])
def test_codes_of_another_layer_or_size_are_refused(shape):
    network = make([Row("sparse", 3)])
    with pytest.raises(ValueError, match=r"codes of layer 1 have the shape \(images, 3, 8, 8\)"):
        rebuild(network, torch.zeros(shape, dtype=torch.float64), 1, (8, 8))


@pytest.mark.parametrize("atom", [1.5, True, -1])
def test_atoms_are_whole_numbers(atom):
    with pytest.raises((ValueError, TypeError), match="atom must be a whole number"):
        synthesize(make([Row("sparse", 3)]), 1, [atom])
