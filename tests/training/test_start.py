"""Training that starts from a trained network."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from runs import QUICK, assert_same_weights, digits, small_model, train_until_interrupted, weights

from torchscn.training import CheckpointError, ConfigError, TrainConfig, fit, train
from torchscn.training.checkpoint import CURRENT
from torchscn.training.loop import load_data
from torchscn.training.start import adopt_start, describe_start, load_start
from torchscn.weights import file_hash, list_pretrained, pretrained_folder

CONFIG = QUICK.override({"ema": 0.0, "epochs": 1})


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first") / "run"
    train(CONFIG, folder, quiet=True)
    return folder


def test_the_weights_are_those_of_the_trained_network(first, tmp_path):
    still = {"lr": 0.0, "weight_decay": 0.0, "seed": 5}
    train(CONFIG.override({"start_from": str(first), **still}), tmp_path / "next", quiet=True)
    before, after = weights(first), weights(tmp_path / "next")
    for name, value in before.items():
        is_weight = name.startswith("model/") and "running" not in name and "num_batches" not in name
        if is_weight:  # preprocessing and statistics of batch norm follow the images of the run
            assert torch.equal(value, after[name]), name
    train(CONFIG.override(still), tmp_path / "random", quiet=True)
    name = "model/classifier.weight"
    assert not torch.equal(before[name], weights(tmp_path / "random")[name])


def test_other_classes_get_a_new_classifier(first):
    start = load_start(str(first))
    trained = start.model
    names = tuple("abcdefghij")
    for classes, kept in ((trained.classes, True), (names, False)):
        torch.manual_seed(1)
        model = CONFIG.make_model(10, 1)
        adopt_start(model, start, classes)
        assert torch.equal(model.classifier.weight, trained.classifier.weight) == kept
        dictionaries = [dict(one.named_parameters())["blocks.3.1.dictionary"] for one in (model, trained)]
        assert torch.equal(*dictionaries)
    model = CONFIG.make_model(3, 1)
    adopt_start(model, start, names[:3])
    assert model.classifier.weight.shape[0] == 3


def test_a_resumed_run_does_not_need_its_start(first, tmp_path, monkeypatch):
    start = tmp_path / "start"
    shutil.copytree(first, start)
    config = CONFIG.override({"start_from": str(start), "checkpoint_seconds": 0.0})
    train(config, tmp_path / "whole", quiet=True)
    train_until_interrupted(config, tmp_path / "broken", 2, monkeypatch)
    shutil.rmtree(start)
    train(config, tmp_path / "broken", resume=True, quiet=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "broken")
    environment = json.loads((tmp_path / "broken" / "environment.json").read_text())
    assert environment["started_from"]["name"] == str(start)
    assert len(environment["resumed"]) == 1


def test_the_folder_says_what_a_run_started_from(first, tmp_path):
    second, third = tmp_path / "second", tmp_path / "third"
    train(CONFIG.override({"start_from": str(first), "epochs": 2}), second, quiet=True)
    train(CONFIG.override({"start_from": str(second)}), third, quiet=True)
    found = [json.loads((folder / "environment.json").read_text())["started_from"] for folder in (second, third)]
    assert found[0] == {"name": str(first), "sha256": file_hash(first / "model.safetensors"), "epochs": 1}
    assert found[1]["epochs"] == 3
    assert describe_start(str(third))["epochs"] == 4
    (second / "environment.json").write_text("damaged")
    assert describe_start(str(second))["epochs"] is None


def test_networks_of_the_package_are_known_by_their_hash():
    for name in list_pretrained():
        described = describe_start(name)
        assert described["name"] == name
        line = f"{described['sha256']}  {name}.safetensors"
        assert line in (pretrained_folder() / "SHA256SUMS").read_text().splitlines()
        assert described["epochs"] > 0
    with pytest.raises(ValueError, match="no weights 'scn9-digits' come with this version"):
        describe_start("scn9-digits")


def test_weights_of_the_package_for_other_images(tmp_path):
    for number in range(16):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 15 * number, dtype=np.uint8)).save(path)
    config = TrainConfig(data=f"folder:{tmp_path / 'photos'}?size=16", start_from="scn1-cifar10", epochs=1)
    still = {"batch_size": 4, "lr": 0.0, "weight_decay": 0.0}
    train(config.override(still), tmp_path / "run", quiet=True)
    packed = load_start("scn1-cifar10").model.state_dict()
    trained = weights(tmp_path / "run")
    assert torch.equal(packed["blocks.3.1.dictionary"], trained["model/blocks.3.1.dictionary"])
    assert trained["model/classifier.weight"].shape[0] == 2


def test_a_network_of_ones_own_does_not_start_from_anything(first, tmp_path):
    with pytest.raises(ConfigError, match="fit trains the weights that the model has"):
        fit(small_model(), *digits(), CONFIG.override({"start_from": str(first)}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_fit_resumes_a_run_that_had_a_start(first, tmp_path, monkeypatch):
    config = CONFIG.override({"start_from": str(first), "checkpoint_seconds": 0.0})
    train(config, tmp_path / "whole", quiet=True)
    train_until_interrupted(config, tmp_path / "broken", 2, monkeypatch)
    fit(config.make_model(10, 1), *load_data(config, None), config, tmp_path / "broken", resume=True, quiet=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "broken")


def test_what_cannot_be_started_from(first, tmp_path):
    with pytest.raises(ConfigError, match="start_from is empty"):
        CONFIG.override({"start_from": ""})
    with pytest.raises(ValueError, match="neither a run folder nor a network of the package"):
        train(CONFIG.override({"start_from": "scn9-digits"}), tmp_path / "a", quiet=True)
    with pytest.raises(CheckpointError, match=r"start_from=.*belongs to another network"):
        train(CONFIG.override({"start_from": str(first), "width": 2}), tmp_path / "b", quiet=True)
    with pytest.raises(CheckpointError, match="belongs to another network"):  # grey digits, colour network
        train(CONFIG.override({"start_from": "scn1-cifar10", "stem": 16}), tmp_path / "c", quiet=True)
    unfinished = tmp_path / "unfinished"
    shutil.copytree(first, unfinished)
    (unfinished / "model.safetensors").unlink()
    assert (unfinished / CURRENT).exists()
    with pytest.raises(ConfigError, match=r"not finished.*--resume"):
        train(CONFIG.override({"start_from": str(unfinished)}), tmp_path / "d", quiet=True)
    assert not [path for path in tmp_path.iterdir() if path.name in "abcd"]
