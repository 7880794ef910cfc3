"""Layers: geometry, gradients, training, conventions of torch."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.autograd import gradcheck
from torch.func import functional_call
from torch.testing import assert_close

import torchscn
from torchscn import SparseCoding, SparseCoding1d, SparseCoding2d

GEOMETRIES = [
    {"kernel_size": 3},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "padding": 0},
    {"kernel_size": (1, 3), "stride": (2, 1)},
    {"kernel_size": 3, "dilation": 2, "padding": 3},
]


def codes_of_patches(layer, x):
    """The layer's output the slow way: lay the patches out and code each."""
    patches = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride).mT
    return torchscn.sparse_code(patches, layer.dictionary.flatten(1), layer.lam1, layer.lam2, tol=1e-10).mT


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_2d_equals_coding_each_patch(geometry, memory_format, kernel):
    layer = SparseCoding2d(3, 7, **geometry, lam1=0.05, per_atom=True, tol=1e-10, dtype=torch.float64)
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64).contiguous(memory_format=memory_format)
    codes = layer(x)
    assert_close(codes.flatten(2), codes_of_patches(layer, x), atol=1e-8, rtol=0)
    convolved = F.conv2d(x, layer.dictionary, None, layer.stride, layer.padding, layer.dilation)
    assert codes.shape == convolved.shape


def test_1d_equals_2d_with_one_row():
    one = SparseCoding1d(3, 7, kernel_size=5, stride=2, dilation=2, tol=1e-10, dtype=torch.float64)
    two = SparseCoding2d(
        3, 7, kernel_size=(1, 5), stride=(1, 2), dilation=(1, 2), tol=1e-10, dtype=torch.float64, lam1=0.0
    )
    two.dictionary.data.copy_(one.dictionary[:, :, None])
    x = torch.randn(2, 3, 20, dtype=torch.float64)
    assert_close(one(x), two(x[:, :, None]).squeeze(2))


@pytest.mark.parametrize("per_atom", [False, True])
@pytest.mark.parametrize("geometry", [{"stride": 2, "padding": 1}, {"dilation": 2, "padding": 2}])
def test_gradcheck_2d(per_atom, geometry):
    torch.manual_seed(1)
    layer = SparseCoding2d(2, 5, **geometry, lam1=0.05, lam2=0.05, per_atom=per_atom, tol=1e-12, dtype=torch.float64)
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64, requires_grad=True)

    def run(x, dictionary, lam1):
        return functional_call(layer, {"dictionary": dictionary, "lam1": lam1}, (x,))

    assert gradcheck(run, (x, layer.dictionary, layer.lam1))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (SparseCoding2d(3, 4), (3, 6, 6)),
        (SparseCoding2d(3, 4), (0, 3, 6, 6)),
        (SparseCoding2d(3, 1, kernel_size=1), (2, 3, 1, 1)),
        (SparseCoding1d(3, 4), (3, 9)),
        (SparseCoding(5, 4), (5,)),
        (SparseCoding(5, 4), (2, 0, 5)),
    ],
)
def test_unbatched_empty_and_single(layer, shape):
    x = torch.randn(shape, requires_grad=True)
    codes = layer(x)
    assert codes.dim() == len(shape)
    codes.sum().backward()
    assert x.grad.shape == shape
    assert layer.solve(x).codes.shape == codes.shape


def test_solve_returns_the_certificate():
    layer = SparseCoding2d(3, 8, tol=1e-6)
    solution = layer.solve(torch.randn(2, 3, 6, 6))
    assert solution.codes.shape == (2, 8, 6, 6)
    assert solution.residual.shape == solution.converged.shape == (2, 6, 6)
    assert solution.converged.all()
    assert solution.residual.max() < 1e-4
    assert not solution.codes.requires_grad


def test_reconstruct_gives_patches_like_unfold():
    layer = SparseCoding2d(2, 60, lam2=1e-6, tol=1e-6)
    x = torch.randn(2, 2, 6, 6)
    patches = layer.reconstruct(layer(x))
    assert patches.shape == (2, 18, 6, 6)
    unfolded = F.unfold(x, 3, padding=1)
    assert (patches.flatten(2) - unfolded).norm() < 0.2 * unfolded.norm()


def test_reconstruct_dense_and_1d():
    dense = SparseCoding(6, 40, lam2=1e-6, tol=1e-6)
    x = torch.randn(9, 6)
    assert (dense.reconstruct(dense(x)) - x).norm() < 0.2 * x.norm()
    assert SparseCoding1d(2, 5).reconstruct(torch.rand(3, 5, 7)).shape == (3, 6, 7)


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=1.0), lambda p: torch.optim.AdamW(p, lr=0.5)])
@pytest.mark.parametrize("per_atom", [False, True])
def test_projection_keeps_lam1_non_negative(make, per_atom):
    model = nn.Sequential(SparseCoding(6, 5, lam1=0.01, per_atom=per_atom), nn.Linear(5, 1))
    optimizer = make(model.parameters())
    handle = torchscn.attach_projection(optimizer, model)
    for _ in range(3):
        # A larger output wants less penalty: lam1 is pushed below zero.
        (-model[0](torch.rand(20, 6)).sum()).backward()
        optimizer.step()
        assert (model[0].lam1 >= 0).all()
    handle.remove()
    (-model[0](torch.rand(20, 6)).sum()).backward()
    optimizer.step()
    assert (model[0].lam1 < 0).any()


def test_projection_bounds_the_norm_of_atoms():
    layer = SparseCoding2d(3, 5)
    with torch.no_grad():
        layer.dictionary[0] *= 100
        layer.dictionary[1] *= 1e-3
    before = layer.dictionary.detach().clone()
    torchscn.project_atoms(nn.Sequential(layer, nn.Linear(2, 2)), max_norm=2.0)
    assert layer.dictionary[0].norm().item() == pytest.approx(2.0, rel=1e-5)
    torch.testing.assert_close(layer.dictionary[0] / 2, before[0] / before[0].norm())
    assert torch.equal(layer.dictionary[1:], before[1:])
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for bad in (0.0, -1.0, float("nan"), "1"):
        with pytest.raises((ValueError, TypeError), match="max_norm must be"):
            torchscn.project_atoms(layer, bad)
        with pytest.raises((ValueError, TypeError), match="max_norm must be"):
            torchscn.attach_projection(optimizer, layer, bad)


def test_negative_lam1_counts_as_zero():
    layer = SparseCoding(6, 5)
    x = torch.rand(20, 6)
    at_zero = layer(x)
    at_zero.sum().backward()
    assert layer.lam1.grad != 0
    layer.lam1.data.fill_(-1.0)
    assert_close(layer(x), at_zero)


def test_unit_norm_ignores_the_length_of_the_parameter():
    layer = SparseCoding2d(3, 5, unit_norm=True)
    assert_close(layer.atoms().flatten(1).norm(dim=1), torch.ones(5))
    x = torch.randn(2, 3, 6, 6)
    before = layer(x)
    layer.dictionary.data *= 3
    assert_close(layer(x), before)
    layer(x).sum().backward()
    along = (layer.dictionary.grad * layer.dictionary).flatten(1).sum(1)
    assert_close(along, torch.zeros(5), atol=1e-3, rtol=0)


def test_error_of_the_codes_is_within_the_tolerance(kernel):
    """Blocks are judged by the error that is left: it must be there or below, however fast the layer converges."""
    for channels, n_atoms in ((3, 16), (16, 64), (32, 16)):
        layer = SparseCoding2d(channels, n_atoms, tol=1e-2)
        x = torch.randn(8, channels, 16, 16)
        codes = layer(x)
        layer.tol = 1e-6
        assert (codes - layer(x)).norm() < 1e-2 * codes.norm()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_pixel_spoils_only_its_own_patches(bad, kernel):
    layer = SparseCoding2d(3, 8, tol=1e-5)
    x = torch.randn(2, 3, 10, 10)
    clean = layer.solve(x)
    x[0, 1, 4, 4] = bad
    solution = layer.solve(x)
    touched = torch.zeros(2, 10, 10, dtype=torch.bool)
    touched[0, 3:6, 3:6] = True
    assert solution.codes.movedim(1, -1)[touched].isnan().all()
    assert not solution.converged[touched].any()
    assert solution.converged[~touched].all()
    assert_close(solution.codes.movedim(1, -1)[~touched], clean.codes.movedim(1, -1)[~touched], atol=1e-4, rtol=1e-4)


def test_initial_atoms_have_about_unit_norm():
    norms = SparseCoding2d(16, 500).dictionary.flatten(1).norm(dim=1)
    assert 0.97 < norms.mean() < 1.03


def test_mixed_network_trains():
    net = nn.Sequential(
        SparseCoding2d(1, 8),
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        SparseCoding2d(8, 12, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 2),
    )
    x = torch.randn(64, 1, 8, 8)
    labels = torch.arange(64) % 2
    x[labels == 1, :, :4] += 1.5
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    torchscn.attach_projection(optimizer, net)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_conventions_of_torch():
    layer = SparseCoding2d(3, 4, per_atom=True, learn_lam1=False, dtype=torch.float64)
    assert "kernel_size=(3, 3)" in repr(layer)
    assert "per_atom=True" in repr(layer)
    assert set(layer.state_dict()) == {"dictionary", "lam1"}
    assert not layer.lam1.requires_grad
    clone = copy.deepcopy(layer).float()
    assert clone(torch.randn(1, 3, 5, 5)).dtype == torch.float32
    before = layer.dictionary.clone()
    layer.reset_parameters()
    assert not torch.equal(before, layer.dictionary)
    assert SparseCoding2d(3, 4, device="meta").dictionary.is_meta


def test_output_is_channels_last():
    codes = SparseCoding2d(3, 4)(torch.randn(2, 3, 6, 6))
    assert codes.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: SparseCoding2d(3, 0), ValueError, ["n_atoms", "0"]),
        (lambda: SparseCoding2d(0, 3), ValueError, ["in_channels"]),
        (lambda: SparseCoding(2.5, 3), TypeError, ["in_features"]),
        (lambda: SparseCoding2d(3, 4, kernel_size=2), ValueError, ["even", "padding"]),
        (lambda: SparseCoding2d(3, 4, kernel_size=(3, 3, 3)), ValueError, ["kernel_size", "2"]),
        (lambda: SparseCoding2d(3, 4, stride=0), ValueError, ["stride"]),
        (lambda: SparseCoding2d(3, 4, padding=-1), ValueError, ["padding"]),
        (lambda: SparseCoding2d(3, 4, lam1=-1.0), ValueError, ["lam1"]),
        (lambda: SparseCoding2d(3, 4, lam2=-1.0), ValueError, ["lam2"]),
        (lambda: SparseCoding2d(3, 4, solver="coordinat"), ValueError, ["Did you mean 'coordinate'"]),
        (lambda: SparseCoding2d(3, 4, grad="unrolled"), ValueError, ["fista"]),
        (lambda: SparseCoding2d(3, 4, dtype=torch.int64), TypeError, ["int64"]),
        (
            lambda: SparseCoding2d(3, 4)(torch.randn(2, 4, 8, 8)),
            ValueError,
            ["(batch, 3, height, width)", "(2, 4, 8, 8)"],
        ),
        (lambda: SparseCoding2d(3, 4)(torch.randn(8, 8)), ValueError, ["(8, 8)"]),
        (lambda: SparseCoding2d(3, 4, padding=0)(torch.randn(1, 3, 2, 8)), ValueError, ["smaller than one patch"]),
        (lambda: SparseCoding2d(3, 4)(torch.ones(1, 3, 8, 8).long()), TypeError, ["float32 or float64", "int64"]),
        (lambda: SparseCoding2d(3, 4)([1.0]), TypeError, ["torch.Tensor", "list"]),
        (lambda: SparseCoding1d(3, 4).solve(torch.randn(1, 2, 8)), ValueError, ["(batch, 3, length)"]),
        (lambda: SparseCoding(3, 4)(torch.randn(2, 4)), ValueError, ["4 features", "have 3"]),
    ],
)
def test_bad_input(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_options_are_read_and_assigned_on_the_layer():
    layer = SparseCoding2d(3, 4, tol=1e-3, max_iter=7)
    layer.tol, layer.solver, layer.max_iter, layer.lam2 = 1e-5, "active_set", None, 0.1
    assert (layer.options.tol, layer.options.solver, layer.options.max_iter, layer.lam2) == (
        1e-5,
        "active_set",
        None,
        0.1,
    )
    layer.stride = (2, 2)
    assert layer(torch.randn(1, 3, 6, 6)).shape == (1, 4, 3, 3)
    with pytest.raises(ValueError, match="tol"):
        layer.tol = -1.0
    with pytest.raises(TypeError, match="Did you mean 'max_iter'"):
        SparseCoding2d(3, 4, max_iters=3)
    with pytest.raises(ValueError, match="Did you mean 'fista'"):
        layer.solver = "fitsa"
    layer.grad = "unrolled"
    layer.solver = "fista"
    assert layer(torch.randn(1, 3, 6, 6)).shape == (1, 4, 3, 3)


def test_options_may_come_as_one_object():
    options = torchscn.CodingOptions(lam1=0.2, per_atom=True)
    layer = SparseCoding2d(3, 4, options=options, tol=1e-4)
    assert (layer.tol, layer.lam1.tolist()) == (1e-4, [pytest.approx(0.2)] * 4)
    assert options.tol == 1e-2
    with pytest.raises(TypeError, match=r"options must be torchscn\.CodingOptions; got dict"):
        SparseCoding2d(3, 4, options={"tol": 1e-4})


def test_lam2_may_be_learned():
    layer = SparseCoding2d(3, 4, lam2=0.1)
    layer.lam2 = nn.Parameter(torch.tensor(0.2))
    layer(torch.randn(1, 3, 6, 6)).sum().backward()
    assert layer.lam2.grad != 0
    assert "lam2=0.2" in repr(layer)


def test_edits_through_data_are_seen():
    layer = SparseCoding2d(3, 4, tol=1e-6)
    x = torch.randn(2, 3, 6, 6)
    scale, offset = torch.ones(4), torch.zeros(4)
    before, inferred = layer(x), layer.infer(x, scale, offset)
    layer.dictionary.data.mul_(2)
    layer.lam2 = 4e-3
    assert_close(layer(x), before / 2, atol=1e-4, rtol=1e-4)
    assert_close(layer.infer(x, scale, offset), inferred / 2, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("values", [torch.ones(3), torch.ones(4).double(), torch.ones(4, 1)])
def test_infer_refuses_other_than_one_value_per_atom(values):
    layer, x, good = SparseCoding2d(3, 4), torch.randn(1, 3, 6, 6), torch.ones(4)
    for scale, offset in ((values, good), (good, values)):
        with pytest.raises((TypeError, ValueError), match=r"scale|offset"):
            layer.infer(x, scale, offset)


@pytest.mark.parametrize("layer", [SparseCoding2d(3, 4), SparseCoding1d(3, 4), SparseCoding(3, 4)])
def test_lam1_of_another_type_is_refused(layer):
    layer.lam1.data = layer.lam1.data.double()
    x = torch.randn(2, 3, *[6] * (layer.dictionary.dim() - 2))
    for call in (layer, layer.solve):
        with pytest.raises(TypeError, match=r"lam1 is torch\.float64"):
            call(x)


@pytest.mark.parametrize(("channels", "n_atoms"), [(1, 16), (1, 64), (3, 64), (3, 128), (8, 32), (16, 64)])
def test_default_layers_are_as_accurate_as_they_say(channels, n_atoms):
    """Overcomplete or not, dim or bright: every position within ten times the tolerance, and the gradient right."""
    torch.manual_seed(0)
    layer = SparseCoding2d(channels, n_atoms)
    x = torch.randn(3, channels, 10, 10)
    x[1] *= 1e-3
    x[2, :, :5] = 0
    exact = copy.deepcopy(layer).double()
    exact.solver = "active_set"
    wanted, solution = exact.solve(x.double()).codes, layer.solve(x)
    assert solution.converged.all()
    assert ((solution.codes - wanted).norm(dim=1) <= 10 * layer.tol * wanted.norm(dim=1)).double().mean() >= 0.999
    incoming = torch.randn_like(wanted)
    layer(x).backward(incoming.float())
    exact(x.double()).backward(incoming)
    cosine = torch.nn.functional.cosine_similarity(
        layer.dictionary.grad.double().flatten(), exact.dictionary.grad.flatten(), dim=0
    )
    assert cosine > 0.99


def test_layers_certify_every_position_by_itself():
    """A dim image in a block of bright ones is not declared done because they are."""
    layer = SparseCoding2d(3, 16, tol=1e-3)
    x = torch.randn(2, 3, 6, 6)
    x[1] *= 1e-6
    solution = layer.solve(x)
    alone = layer.solve(x[1:])
    assert solution.converged.all()
    size = alone.codes.norm(dim=1)
    assert ((solution.codes[1:] - alone.codes).norm(dim=1) <= 20 * layer.tol * size).all()
