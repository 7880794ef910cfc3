"""What the explorer answers, that it leaves the network alone, and what it refuses."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.explore.conftest import small
from torchscn import data, load_trained
from torchscn.explore import Explorer, RequestError
from torchscn.explore.examples import MOST, find_examples
from torchscn.explore.explorer import add_noise
from torchscn.explore.fields import pack
from torchscn.explore.penalty import changed_lam1, vanishing_lam1
from torchscn.explore.rebuilding import match_contrast
from torchscn.inspect import look, rebuild, synthesize


def unpack(text: str, kind: str = "u1") -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), kind).copy())


def digit(number: int = 3) -> Tensor:
    """A test image of the digits, uint8 (1, 8, 8)."""
    return data.load("digits", "test").images[number]


def codes_of(answer: dict) -> Tensor:
    return unpack(answer["codes"], "<f4").reshape(answer["shape"])


def ask(explorer: Explorer, pixels: Tensor | None = None, **fields) -> dict:
    return explorer.look({"pixels": pack(digit() if pixels is None else pixels)} | fields)


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer(small(lam1=0.05))


@pytest.fixture(scope="module")
def twin() -> Explorer:
    return Explorer(small("cnn1"))


@pytest.mark.parametrize("options", [{}, {"norm": "after"}, {"per_atom": True}, {"solver": "fista", "tol": 1e-4}])
def test_the_answer_is_that_of_the_network(options):
    trained = small(**options)
    with torch.no_grad():
        expected = trained.model(trained.model.preprocess(digit()[None])).softmax(1)[0]
    torch.testing.assert_close(torch.tensor(ask(Explorer(trained))["shares"]), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("layer", [1, 6, 14])
def test_codes_are_those_of_the_layer(explorer, layer):
    trained = small(lam1=0.05, tol=1e-6)
    *_, seen = look(trained.model, trained.model.preprocess(digit()[None]), last=layer)
    answer = ask(Explorer(trained), layer=layer)
    torch.testing.assert_close(codes_of(answer), seen.codes[0].contiguous(), atol=1e-4, rtol=1e-4)
    assert answer["active"] == pytest.approx(float((codes_of(answer) != 0).sum(0).double().mean()))
    assert answer["converged"] == 1
    assert 0 < answer["residual"] < 1e-4


@pytest.mark.parametrize("options", [{}, {"lam1": 0.02}, {"per_atom": True, "lam1": 0.02}, {"constraint": "signed"}])
@pytest.mark.parametrize("layer", [1, 9])
def test_all_codes_vanish_at_the_end_of_the_scale_and_not_before(options, layer):
    explorer = Explorer(small(tol=1e-6, **options))
    trained = ask(explorer, layer=layer)
    high = trained["lam1_max"]
    gone = ask(explorer, layer=layer, lam1=high)
    almost = ask(explorer, layer=layer, lam1=0.98 * high)
    none = ask(explorer, layer=layer, lam1=0)
    assert gone["active"] == 0 < almost["active"] < trained["active"] <= none["active"]
    assert gone["lam1_max"] == high
    assert trained["lam1"] == trained["lam1_trained"] != gone["lam1"]


def test_signed_codes_vanish_when_neither_sign_is_left():
    layer = small(constraint="signed").model.sparse_layers()[0][1]
    x = torch.randn(1, 1, 8, 8)
    with torch.no_grad():
        one, other = (vanishing_lam1(layer.coding_model(), sign * x) for sign in (1, -1))
    assert one == other > 0


def test_a_higher_penalty_makes_codes_sparser(mnist):
    explorer = Explorer(mnist)
    pixels = torch.zeros(1, 28, 28, dtype=torch.uint8)
    pixels[0, 4:24, 12:16] = 255
    active = [ask(explorer, pixels, layer=2, lam1=lam1)["active"] for lam1 in (0, 0.2, 0.5, 1, 2, 3)]
    assert active == sorted(active, reverse=True)
    assert active[-1] < active[0] / 4


def test_penalties_per_atom_keep_their_differences():
    own = torch.tensor([0.0, 0.2, 0.4])
    torch.testing.assert_close(changed_lam1(own, 0.2), own)
    torch.testing.assert_close(changed_lam1(own, 0.1), own / 2)
    torch.testing.assert_close(changed_lam1(own, 0.7), own + 0.5)
    torch.testing.assert_close(changed_lam1(torch.zeros(2), 0.7), torch.full((2,), 0.7))
    assert changed_lam1(torch.tensor(0.2), 0.1).shape == ()


def test_the_network_is_left_alone():
    trained = small()
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    options = [layer.options for _, layer in trained.model.sparse_layers()]
    explorer = Explorer(trained)
    first = ask(explorer, layer=3)
    ask(explorer, layer=3, lam1=2.0, tol=0.1, noise=0.5)
    with pytest.raises(RequestError):
        ask(explorer, layer=3, lam1=-1)
    assert all(torch.equal(value, before[name]) for name, value in trained.model.state_dict().items())
    assert [layer.options for _, layer in trained.model.sparse_layers()] == options
    assert ask(explorer, layer=3) == first


def test_the_tolerance_is_that_of_all_layers(explorer):
    rough, exact = (ask(explorer, layer=5, tol=tol) for tol in (0.1, 1e-6))
    assert rough["iterations"] < exact["iterations"]
    assert exact["residual"] < 1e-4 < rough["residual"]
    assert exact["lam1_max"] != rough["lam1_max"]  # that of layer 5 depends on the codes of the layers before it


def test_steps_that_are_fixed_have_no_tolerance_to_meet():
    explorer = Explorer(small(solver="fista", tol=0.0, max_iter=5))
    answer = ask(explorer, layer=2)
    assert (answer["converged"], answer["iterations"]) == (None, 5)
    assert explorer.describe()["layers"][1]["tol"] is None
    assert ask(explorer, layer=2, tol=1e-3)["converged"] == 1


def test_noise_stays_the_same_until_a_new_seed(explorer):
    plain, one, same, other = (
        ask(explorer, noise=noise, seed=seed) for noise, seed in ((0, 1), (0.2, 1), (0.2, 1), (0.2, 2))
    )
    assert plain["seen"] == plain["input"] == one["input"] == pack(digit())
    assert one["seen"] == same["seen"] != other["seen"] != plain["seen"]


def test_noise_has_the_spread_that_was_asked_for():
    grey = torch.full((3, 100, 100), 128, dtype=torch.uint8)
    noisy = add_noise(grey, 0.1, 0).double()
    assert float(noisy.std()) == pytest.approx(25.5, rel=0.02)
    assert float(noisy.mean()) == pytest.approx(128, abs=0.5)
    assert add_noise(grey, 1.0, 0).unique()[[0, -1]].tolist() == [0, 255]


def test_the_image_is_rebuilt_from_codes(mnist):
    explorer = Explorer(mnist)
    pixels = torch.zeros(1, 28, 28, dtype=torch.uint8)
    pixels[0, 4:24, 12:16] = 255
    first, fifth = (ask(explorer, pixels, layer=layer) for layer in (1, 5))
    assert first["likeness"] > 0.9
    assert 0.4 < fifth["likeness"] < first["likeness"]
    rebuilt = unpack(first["rebuilt"]).reshape(28, 28).double()
    assert rebuilt[8:20, 13:15].mean() > 200 > 40 > rebuilt[:, :8].mean()
    gone = ask(explorer, pixels, layer=1, lam1=first["lam1_max"])
    assert gone["likeness"] == 0
    assert len(unpack(gone["rebuilt"]).unique()) == 1


@pytest.mark.parametrize("layer", [1, 3, 7])
def test_what_is_rebuilt_is_what_rebuild_makes_of_the_differences(layer):
    """The way back is linear apart from constants, so two images that differ show the same difference."""
    trained = small(tol=1e-6, norm="before")
    model = trained.model
    x = model.preprocess(digit()[None])
    *_, seen = look(model, x, last=layer)
    level = seen.codes.mean((2, 3), keepdim=True).expand_as(seen.codes)
    expected = match_contrast(rebuild(model, seen.codes, layer) - rebuild(model, level, layer), x)
    answer = ask(Explorer(trained), layer=layer)
    assert answer["likeness"] == pytest.approx(expected.likeness, abs=1e-2)
    pixels = ((expected.image + 0.3).clamp(0, 1) * 255).round().flatten()
    assert (unpack(answer["rebuilt"]) - pixels).abs().mean() < 2


def test_likeness_asks_neither_for_brightness_nor_contrast():
    original = torch.randn(1, 3, 8, 8)
    for gain, likeness in ((1e-2, 1), (50, 1), (-1, -1)):
        matched = match_contrast(gain * original + 7, original)
        assert matched.likeness == pytest.approx(likeness, abs=1e-3)
    torch.testing.assert_close(match_contrast(0.01 * original + 7, original).image, original, atol=1e-2, rtol=0)


def test_pictures_of_atoms_are_what_they_stand_for(explorer):
    answer = explorer.pictures({"layer": 3, "atoms": [2, 0]})
    expected = synthesize(small(lam1=0.05).model, 3, [2, 0])
    assert answer["side"] == expected.shape[-1] == 7
    for text, atom in zip(answer["pictures"], expected, strict=True):
        levels = unpack(text).reshape(atom.shape).double()
        torch.testing.assert_close((levels - 128) / 127, (atom / atom.abs().max()).double(), atol=5e-3, rtol=0)


def test_a_convolution_has_channels_but_no_inverse(twin):
    about = twin.describe()["layers"][4]
    assert (about["sparse"], about["inverse"], about["has_lam1"], about["tol"]) == (False, False, False, None)
    answer = ask(twin, layer=5)
    assert answer["rebuilt"] is answer["lam1_max"] is answer["residual"] is None
    assert codes_of(answer).shape[0] == about["width"]
    assert answer["active"] > 0
    with pytest.raises(RequestError, match="a convolution has no inverse of its own"):
        twin.pictures({"layer": 5, "atoms": [0]})


def test_codes_that_sum_to_one_have_no_penalty_to_turn():
    assert not Explorer(small(constraint="sum_to_one")).describe()["layers"][0]["has_lam1"]


def test_a_drawing_is_placed_before_it_is_looked_at(explorer):
    ink = torch.zeros(280, 280, dtype=torch.uint8)
    ink[100:200, 50:100] = 255
    answer = explorer.look({"drawing": pack(ink)})
    seen = unpack(answer["input"]).reshape(8, 8)
    assert seen.any(1).all()
    assert seen.any(0).sum() == 4


def test_the_description_tells_what_there_is(mnist):
    about = Explorer(mnist, name="mine", layer=4).describe()
    assert json.loads(json.dumps(about))["name"] == "mine"
    assert (about["layer"], about["size"], about["channels"], about["canvas"]) == (4, (28, 28), 1, 280)
    assert [layer["number"] for layer in about["layers"]] == list(range(1, 15))
    assert about["layers"][1]["width"] == 64
    assert about["layers"][1]["field"] == {"size": 5, "step": 1, "start": -2}
    assert Explorer(small(channels=3)).describe()["canvas"] is None


def test_examples_are_one_of_each_class(explorer):
    examples = explorer.describe()["examples"]
    test = data.load("digits", "test")
    assert [example["label"] for example in examples] == list(range(10))
    for example in examples:
        first = test.images[(test.labels == example["label"]).nonzero()[0, 0]]
        assert example["pixels"] == pack(first)


@pytest.mark.parametrize("name", ["mnist", "folder:nowhere", "nonsense", "", "cifar10"])
def test_missing_data_are_no_obstacle(mnist, name, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHSCN_DATA", raising=False)
    assert find_examples(name, mnist.model) == find_examples(name, mnist.model, tmp_path / "gone") == []
    assert Explorer(replace(mnist, config=small(data=name).config)).describe()["examples"] == []


def test_images_of_another_kind_are_no_examples(mnist):
    assert find_examples("digits", mnist.model) == []  # 8 x 8 pixels
    trained = small()
    trained.model.classes = tuple("abcdefghij")
    assert find_examples("digits", trained.model) == []


def test_of_many_classes_some_are_shown(monkeypatch):
    n = 50
    many = data.ImageSet("many", torch.zeros(n, 1, 8, 8, dtype=torch.uint8), torch.arange(n), tuple(map(str, range(n))))
    monkeypatch.setattr(data, "load", lambda *arguments: many)
    trained = small()
    trained.model.classes = many.classes
    labels = [example.label for example in find_examples("many", trained.model)]
    assert len(set(labels)) == MOST
    assert (labels[0], labels[-1]) == (0, n - 1)


def test_weights_that_are_no_numbers_still_give_an_answer_in_json():
    trained = small()
    trained.model.classifier.bias.data.fill_(float("nan"))
    trained.model.sparse_layers()[3][1].dictionary.data.fill_(float("nan"))
    answer = ask(Explorer(trained), layer=4)
    assert answer["shares"] == [None] * 10
    json.dumps(answer, allow_nan=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer": 0}, "layer must be a whole number from 1 to 14; got 0."),
        ({"layer": 15}, "layer must be a whole number from 1 to 14; got 15."),
        ({"layer": "1"}, "layer must be a whole number from 1 to 14; got '1'."),
        ({"layer": True}, "got True."),
        ({"layer": 1.0}, "got 1.0."),
        ({"lam1": -0.1}, "lam1 must be a number from 0 to 1e"),
        ({"lam1": float("nan")}, "got nan."),
        ({"lam1": float("inf")}, "got inf."),
        ({"lam1": 10**400}, "lam1 must be a number"),
        ({"lam1": []}, "got []."),
        ({"tol": 0}, "tol must be a number from 1e-08 to 1; got 0."),
        ({"tol": float("nan")}, "got nan."),
        ({"noise": 1.5}, "noise must be a number from 0 to 1; got 1.5."),
        ({"noise": "much"}, "got 'much'."),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"seed": 2**32}, "seed must be a whole number from 0"),
        ({"seed": 0.5}, "got 0.5."),
        ({"speed": 3}, "there is no field 'speed'; there are pixels, drawing, layer,"),
        ({"pixels": None}, "a request needs an image: either pixels or a drawing."),
        ({"drawing": ""}, "a request needs an image: either pixels or a drawing."),
        ({"pixels": 5}, "pixels must be text, pixels in base64; got int."),
        ({"pixels": "?"}, "pixels is not valid base64."),
        ({"pixels": "é"}, "pixels is not valid base64."),
        ({"pixels": pack(torch.zeros(65, dtype=torch.uint8))}, "must hold 64 bytes, 1 x 8 x 8 pixels; got 65."),
        ({"pixels": None, "drawing": "AAAA"}, "drawing must hold 78400 bytes, 280 x 280 pixels; got 3."),
    ],
)
def test_what_is_wrong_with_a_request_is_said_in_one_sentence(explorer, fields, message):
    with pytest.raises(RequestError) as refused:
        explorer.look({"pixels": pack(digit())} | fields)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("request_", [None, [], "text", 5, [1, 2]])
def test_a_request_must_be_an_object(explorer, request_):
    for answer in (explorer.look, explorer.pictures):
        with pytest.raises(RequestError, match="a request must be an object"):
            answer(request_)


@pytest.mark.parametrize("atoms", [None, 3, [4], [-1], ["0"], [True], [0.5], [0] * 33])
def test_atoms_must_be_those_of_the_layer(explorer, atoms):
    with pytest.raises(RequestError, match="atoms must be"):
        explorer.pictures({"layer": 1, "atoms": atoms})


def test_colour_networks_take_no_drawing():
    with pytest.raises(RequestError, match="takes colour images"):
        Explorer(small(channels=3)).look({"drawing": pack(torch.zeros(280, 280, dtype=torch.uint8))})


def test_only_trained_networks_for_images_are_explored():
    trained = small()
    trained.model.classes = None
    with pytest.raises(ValueError, match="was not trained, so it does not know its classes"):
        Explorer(trained)
    with pytest.raises(TypeError, match="a network with shortcuts is not looked into"):
        Explorer(small(shortcuts="projected"))
    with pytest.raises(ValueError, match="grey or colour images can be explored; got 4 channels"):
        Explorer(small(channels=4))


@pytest.mark.parametrize("layer", [0, 15, -3])
def test_the_first_layer_must_exist(mnist, layer):
    with pytest.raises(ValueError, match="layer must be"):
        Explorer(mnist, layer=layer)


def test_colour_networks_of_the_package_answer():
    explorer = Explorer(load_trained("scn1-cifar10"))
    answer = ask(explorer, torch.randint(256, (3, 32, 32), dtype=torch.uint8), layer=11)
    assert answer["shape"] == [64, 8, 8]
    assert sum(answer["shares"]) == pytest.approx(1)
    assert len(unpack(answer["rebuilt"])) == 3 * 32 * 32
