"""Shortcuts around modules: what is added where, in every way a network is run, and nothing without them."""

import copy
from unittest import mock

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from problems import with_residual
from torch import nn
from torch.testing import assert_close

from torchscn import Bottleneck, LayerOptions, Network, Row, SparseCoding2d, certify, create_model
from torchscn.shortcuts import PooledShortcut, make_shortcut

KINDS = ["pooled", "projected"]
# Same shape, another stride, more channels, fewer channels, a stride in the second row.
MIXED = [
    *(Row("sparse", 4), Row("conv", 6)),
    *(Row("conv", 5), Row("sparse", 6)),
    *(Row("sparse", 5, 2), Row("sparse", 8)),
    *(Row("conv", 4), Row("conv", 5, 2)),
]
TABLES = {
    "sparse": [row._replace(kind="sparse") for row in MIXED],
    "conv": [row._replace(kind="conv") for row in MIXED],
    "mixed": MIXED,
}


def trained(table="mixed", **options) -> Network:
    """A network in evaluation mode whose norms know some images."""
    network = Network(TABLES[table], 3, options=LayerOptions(**{"tol": 1e-5, **options}))
    for _ in range(3):
        network(torch.randn(4, 3, 11, 11))
    return network.eval()


def pooled_by_hand(x, codes):
    """Averages of the pixels that exist, placed into the channels that both have."""
    size = codes.shape[2:]
    step = -(-x.shape[2] // size[0])
    added = torch.zeros_like(codes)
    for row in range(size[0]):
        for column in range(size[1]):
            square = x[:, : codes.shape[1], step * row : step * (row + 1), step * column : step * (column + 1)]
            added[:, : square.shape[1], row, column] = square.mean((2, 3))
    return added


def projected_by_hand(network, number, x, codes):
    if x.shape == codes.shape:
        return x
    return F.conv2d(x, network.shortcuts[str(number)].weight, stride=-(-x.shape[2] // codes.shape[2]))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("norm", ["before", "after"])
@pytest.mark.parametrize("shortcuts", KINDS)
def test_the_input_of_a_module_is_added_to_its_output(shortcuts, norm, table):
    network = trained(table, shortcuts=shortcuts, norm=norm)
    x = images = torch.randn(2, 3, 11, 11)
    for number in range(1, 5):
        first, second = network.blocks[2 * number - 2], network.blocks[2 * number - 1]
        codes = second(first(x))
        if shortcuts == "projected":
            x = codes + projected_by_hand(network, number, x, codes)
        else:
            x = codes if number == 1 else codes + pooled_by_hand(x, codes)
    expected = network.classifier(network.norm(x).mean((2, 3)))
    assert_close(network(images), expected, atol=1e-5, rtol=1e-4)


def test_kinds_of_shortcuts_of_the_papers_network():
    kinds = {kind: create_model("scn2", shortcuts=kind).shortcuts for kind in ("none", *KINDS)}
    assert not kinds["none"]
    names = {kind: {key: type(module).__name__ for key, module in kinds[kind].items()} for kind in KINDS}
    same = dict.fromkeys("2357", "Identity")
    assert names["pooled"] == same | dict.fromkeys("46", "PooledShortcut")
    assert names["projected"] == same | dict.fromkeys("146", "Conv2d")
    assert kinds["projected"]["4"].bias is None


@pytest.mark.parametrize("k", [1, 2, 4])
def test_weights_that_shortcuts_add(k):
    counts = {kind: count(create_model(f"scn{k}", shortcuts=kind)) for kind in ("none", *KINDS)}
    assert counts["pooled"] == counts["none"]
    assert counts["projected"] == counts["none"] + 3 * 16 * k + 16 * k * 32 * k + 32 * k * 64 * k


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["scn1", "cnn1"])
def test_layers_keep_names_and_first_weights(name):
    states = {}
    for kind in ("none", *KINDS):
        torch.manual_seed(3)
        states[kind] = create_model(name, shortcuts=kind).state_dict()
    assert list(states["none"]) == list(states["pooled"])
    assert list(states["projected"]) == [*states["none"], *(f"shortcuts.{n}.weight" for n in (1, 4, 6))]
    for kind in KINDS:
        assert all(torch.equal(states[kind][key], value) for key, value in states["none"].items())


def test_without_shortcuts_the_network_is_a_chain():
    network = trained()
    x = torch.randn(2, 3, 8, 8)
    assert isinstance(network.blocks, nn.Sequential)
    assert torch.equal(network(x), network.classifier(network.norm(network.blocks(x)).mean((2, 3))))


def test_projections_start_like_convolutions():
    weight = make_shortcut("projected", 64, 512, 2).weight.detach()
    assert float(weight.std()) == pytest.approx((2 / 64) ** 0.5, rel=0.05)


@pytest.mark.parametrize("side", [1, 2, 6, 7, 8, 9])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_shortcuts_have_the_size_that_layers_have(kind, stride, side):
    x = torch.ones(1, 2, side, side)
    assert make_shortcut(kind, 2, 3, stride)(x).shape == SparseCoding2d(2, 3, stride=stride)(x).shape


def test_pooling_averages_what_is_there():
    pooled = PooledShortcut(3, stride=2)(torch.ones(1, 2, 5, 5))
    assert torch.equal(pooled[:, :2], torch.ones(1, 2, 3, 3))
    assert torch.equal(pooled[:, 2:], torch.zeros(1, 1, 3, 3))
    x = torch.randn(1, 5, 4, 4)
    assert torch.equal(PooledShortcut(3, stride=1)(x), x[:, :3])


@pytest.mark.parametrize("norm", ["before", "after"])
@pytest.mark.parametrize("shortcuts", KINDS)
def test_features_are_codes_before_the_shortcut(shortcuts, norm):
    network = trained(shortcuts=shortcuts, norm=norm)
    seen = []
    for module in network.modules():
        if isinstance(module, (SparseCoding2d, nn.ReLU)):
            module.register_forward_hook(lambda module, inputs, codes: seen.append(codes))
    x = torch.randn(2, 3, 11, 11)
    network(x)
    hooked, seen[:] = list(seen), []
    features = network.forward_features(x)
    assert [f.shape[1] for f in features] == [row.width for row in MIXED]
    assert_close(features, hooked)


@pytest.mark.parametrize("order", ["reduce_expand", "expand_reduce"])
@pytest.mark.parametrize("kind", ["sparse", "conv"])
def test_bottleneck(kind, order):
    x = torch.randn(2, 5, 9, 9)
    for shortcuts in KINDS:
        module = Bottleneck(5, 4, 8, stride=2, order=order, kind=kind, options=LayerOptions(shortcuts=shortcuts))
        module.eval()
        assert_close(module(x), module[1](module[0](x)) + module.shortcut(x))
    assert "shortcut.weight" in module.state_dict()
    same = Bottleneck(8, 4, 8, options=LayerOptions(shortcuts="projected"))
    assert isinstance(same.shortcut, nn.Identity)
    assert Bottleneck(5, 4, 8).shortcut is None


def infer_calls(network, x):
    """Evaluation without gradients, and how many layers took their norm along."""
    with mock.patch.object(SparseCoding2d, "infer", autospec=True, side_effect=SparseCoding2d.infer) as fused:
        with torch.no_grad():
            out = network(x)
        return out, fused.call_count


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(
    ("table", "norm", "n_fused"), [("sparse", "before", 4), ("sparse", "after", 8), ("mixed", "before", 2)]
)
@pytest.mark.parametrize("shortcuts", KINDS)
def test_evaluation_in_one_pass_changes_nothing(shortcuts, table, norm, n_fused, affine):
    network = trained(table, shortcuts=shortcuts, norm=norm, affine=affine)
    for parameter in network.parameters():
        parameter.data += 0.05 * torch.rand_like(parameter)
    x = torch.randn(3, 3, 11, 11)
    fused, calls = infer_calls(network, x)
    assert calls == n_fused
    assert_close(fused, network(x), atol=1e-4, rtol=1e-3)


def test_evaluation_lets_hooks_and_replaced_blocks_take_part():
    network = trained("sparse", shortcuts="projected")
    x = torch.randn(2, 3, 11, 11)
    seen = []
    network.shortcuts["2"].register_forward_hook(lambda *_: seen.append("shortcut"))
    assert infer_calls(network, x)[1] == 4
    network.blocks[3].register_forward_hook(lambda *_: seen.append("block"))
    assert infer_calls(network, x)[1] == 0
    assert seen == ["shortcut", "block", "shortcut"]
    model = with_residual(create_model("scn1", shortcuts="pooled", width=1).eval())
    expected = model(x)
    fused, calls = infer_calls(model, x)
    assert calls == 0
    assert_close(fused, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("shortcuts", KINDS)
def test_every_weight_has_a_gradient(shortcuts):
    network = create_model("scn1", stem=4, shortcuts=shortcuts)
    network(torch.randn(2, 3, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    for name, parameter in network.named_parameters():
        if name.startswith("shortcuts"):
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("shortcuts", KINDS)
def test_certificates(shortcuts):
    network = trained("sparse", shortcuts=shortcuts)
    found = certify(network, torch.randn(2, 3, 11, 11))
    assert [layer.name for layer in found] == [name for name, _ in network.sparse_layers()]
    assert all(layer.is_sound for layer in found)


@pytest.mark.parametrize("shortcuts", KINDS)
def test_compiles_to_one_graph(shortcuts):
    network = trained(shortcuts=shortcuts)
    x = torch.randn(2, 3, 11, 11, requires_grad=True)
    compiled, expected = torch.compile(network, fullgraph=True, backend="aot_eager")(x), network(x)
    assert_close(compiled, expected, atol=1e-5, rtol=1e-4)
    ours, theirs = (torch.autograd.grad(out.square().sum(), x)[0] for out in (compiled, expected))
    assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("shortcuts", KINDS)
def test_exports_with_a_dynamic_batch(shortcuts):
    network = trained(shortcuts=shortcuts)
    batch = torch.export.Dim("batch")
    program = torch.export.export(network, (torch.randn(4, 3, 11, 11),), dynamic_shapes=({0: batch},))
    more = torch.randn(7, 3, 11, 11)
    assert_close(program.module()(more), network(more), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shortcuts", KINDS)
def test_transforms_and_copies(shortcuts):
    network = trained(shortcuts=shortcuts, tol=1e-10).double()
    x = torch.randn(3, 2, 3, 11, 11, dtype=torch.float64)
    expected = torch.stack([network(part) for part in x])
    assert_close(torch.func.vmap(network)(x), expected)
    assert_close(torch.stack([copy.deepcopy(network)(part) for part in x]), expected)


@pytest.mark.parametrize("n_rows", [1, 3])
@pytest.mark.parametrize("shortcuts", KINDS)
def test_half_a_module_is_refused(shortcuts, n_rows):
    with pytest.raises(ValueError, match=rf"shortcuts='{shortcuts}' .* two rows each; this table has {n_rows} row"):
        Network(MIXED[:n_rows], options=LayerOptions(shortcuts=shortcuts))


def test_a_list_of_blocks_cannot_be_called_past_the_shortcuts():
    with pytest.raises(NotImplementedError):
        create_model("scn1", shortcuts="pooled").blocks(torch.randn(1, 3, 8, 8))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: create_model("scn1", shortcuts="pool"), ["shortcuts='pool'", "Did you mean 'pooled'"]),
        (lambda: create_model("scn4", pretrained="mnist", shortcuts="pooled"), ["brings its own shortcuts"]),
    ],
)
def test_errors_help(make, words):
    with pytest.raises(ValueError, match=r".") as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)
