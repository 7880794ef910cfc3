"""The trained networks that come with the package, and files that are not what they should be."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from torchscn import create_model, data, list_pretrained, weights
from torchscn.weights import (
    CheckpointError,
    TrainedWeights,
    file_hash,
    load_pretrained,
    pretrained_folder,
    read_weights,
)

NAMES = list_pretrained()
N_CHECKED = 500


def load(name: str, **options):
    model, trained_on = name.split("-", 1)
    return create_model(model, pretrained=trained_on, **options)


def test_the_promised_networks_are_here():
    assert {"scn1-cifar10", "scn4-mnist"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_hash_is_the_published_one(name):
    lines = (pretrained_folder() / weights.HASHES).read_text().splitlines()
    known = dict(reversed(line.split()) for line in lines)
    assert file_hash(pretrained_folder() / f"{name}.safetensors") == known[f"{name}.safetensors"]


@pytest.mark.parametrize("name", NAMES)
def test_a_user_needs_to_know_nothing(name):
    model = load(name)
    assert not model.training
    images = torch.randint(0, 256, (3, model.in_channels, *model.image_size), dtype=torch.uint8)
    with torch.no_grad():
        scores = model(model.preprocess(images))
    assert scores.shape == (3, len(model.classes)) == (3, model.num_classes)
    assert scores.isfinite().all()
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_card_says_what_the_file_says(name):
    card = (pretrained_folder() / f"{name}.md").read_text()
    about = load_pretrained(name).about
    assert f"{about['test_error']:.2f} % of the {about['data']} test images" in card
    assert all(label in card for label in about["classes"])
    assert about["command"] in card


@pytest.mark.parametrize("name", NAMES)
def test_error_on_real_images(name):
    if not os.environ.get("TORCHSCN_DATA"):
        pytest.skip("TORCHSCN_DATA is not set: no real images")
    model, about = load(name), load_pretrained(name).about
    test_set = data.load(about["data"], "test", Path(os.environ["TORCHSCN_DATA"]))
    with torch.no_grad():
        scores = model(model.preprocess(test_set.images[:N_CHECKED]))
    n_wrong = int((scores.argmax(1) != test_set.labels[:N_CHECKED]).sum())
    # Another processor rounds otherwise; an image on the border may fall to the other side.
    assert abs(n_wrong - about[f"wrong_of_first_{N_CHECKED}"]) <= 2
    assert model.classes == test_set.classes


def test_solver_may_be_chosen_beside_the_weights():
    one, other = load("scn4-mnist", tol=1e-5), load("scn4-mnist", solver="active_set", tol=1e-5)
    assert other.sparse_layers()[0][1].solver == "active_set"
    images = torch.randint(0, 256, (2, 1, 12, 12), dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(one(one.preprocess(images)), other(other.preprocess(images)), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: create_model("scn1", pretrained="cifar9"), ["scn1-cifar9", "scn4-mnist"]),
        (lambda: create_model("scn4", pretrained="mnist", stem=16), ["own stem", "only solver"]),
        (lambda: create_model("scn4", pretrained="mnist", preset="text"), ["own preset"]),
        (lambda: create_model("scn4", num_classes=7, pretrained="mnist"), ["10 classes", "not 7", "classifier"]),
        (lambda: create_model("scn4", in_channels=2, pretrained="mnist"), ["1 channels", "not 2"]),
        (lambda: create_model("scn4", in_channels=3, pretrained="mnist"), ["1 channels", "not 3"]),
        (lambda: load("scn4-mnist").preprocess(torch.zeros(1, 3, 28, 28, dtype=torch.uint8)), ["(batch, 1,"]),
    ],
)
def test_errors_help(make, words):
    with pytest.raises(ValueError, match=r".") as caught:
        make()
    assert all(word in str(caught.value) for word in words)


def test_preprocess_wants_bytes_and_a_trained_network():
    with pytest.raises(TypeError, match="uint8"):
        load("scn4-mnist").preprocess(torch.rand(1, 1, 28, 28))
    with pytest.raises(RuntimeError, match="not trained"):
        create_model("scn1").preprocess(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))


def test_file_that_was_tampered_with(tmp_path, monkeypatch):
    for path in pretrained_folder().iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    broken = tmp_path / "scn4-mnist.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1] + b"\x01")
    monkeypatch.setattr(weights, "pretrained_folder", lambda: tmp_path)
    with pytest.raises(CheckpointError, match="hash differs"):
        load_pretrained("scn4-mnist")


def test_file_of_somebody_else(tmp_path):
    save_file({"model/a": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="no description"):
        read_weights(tmp_path / "other.safetensors")


def test_float16_is_for_matrices_only(tmp_path):
    model = {"dictionary": torch.randn(3, 2), "lam1": torch.tensor(0.1), "running_var": torch.rand(3)}
    kept = TrainedWeights(model, {}, {}).stored_in(torch.float16).model
    assert {name: value.dtype for name, value in kept.items()} == {
        "dictionary": torch.float16,
        "lam1": torch.float32,
        "running_var": torch.float32,
    }


@pytest.mark.parametrize("text", [b"", b"abc", b"\xff\xfe", None])
def test_damaged_hashes_are_no_riddle(tmp_path, monkeypatch, text):
    (tmp_path / f"{NAMES[0]}.safetensors").write_bytes(b"")
    if text is not None:
        (tmp_path / weights.HASHES).write_bytes(text)
    monkeypatch.setattr(weights, "pretrained_folder", lambda: tmp_path)
    weights._known_hashes.cache_clear()
    try:
        with pytest.raises(CheckpointError, match=r"Reinstall torchscn\."):
            load_pretrained(NAMES[0])
    finally:
        weights._known_hashes.cache_clear()
