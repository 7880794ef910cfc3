"""The loop on the embedded digits: it learns, repeats itself exactly, and survives what can happen to it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import torchscn
from torchscn import data
from torchscn.network import Network, Row
from torchscn.training import (
    CheckpointError,
    ConfigError,
    DivergenceError,
    TrainConfig,
    fit,
    load_data,
    load_trained,
    train,
)
from torchscn.training.checkpoint import CURRENT, PREVIOUS, Checkpoint, load_checkpoint, save_checkpoint
from torchscn.training.loop import train_step

QUICK = TrainConfig(epochs=2, batch_size=64, limit=256, stem=4, shift=1, ema=0.9, warmup=0.25, schedule="onecycle")


def small_model(num_classes: int = 10) -> Network:
    torch.manual_seed(0)
    return Network([Row("sparse", 6), Row("conv", 8, 2)], num_classes, in_channels=1)


def digits() -> tuple[data.ImageSet, data.ImageSet]:
    return data.load("digits", "train"), data.load("digits", "test")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same_weights(one: Path, other: Path) -> None:
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_learns_and_records(tmp_path):
    config = TrainConfig(epochs=6, batch_size=64, lr=0.2, schedule="onecycle", warmup=0.3, tensorboard=True)
    result = fit(small_model(), *digits(), config, tmp_path, quiet=True)
    assert result.metrics[-1]["test_error"] < 25
    assert result.metrics[-1]["test_error"] < result.metrics[0]["test_error"]
    entries = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [entry["epoch"] for entry in entries] == [1, 2, 3, 4, 5, 6]
    (layer,) = entries[-1]["layers"]
    assert layer["converged"] == 1.0
    assert layer["iterations"] > 1
    names = {path.name for path in tmp_path.iterdir()}
    assert {"config.json", "environment.json", "model.safetensors", "curves.png", CURRENT, PREVIOUS} <= names
    assert any(name.startswith("events.out") for name in names)
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["torch"] == torch.__version__


def test_same_seed_same_result_other_seed_another(tmp_path):
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        train(QUICK.override({"seed": seed}), tmp_path / name, quiet=True)
    assert_same_weights(tmp_path / "one", tmp_path / "same")
    assert not torch.equal(
        weights(tmp_path / "one")["model/classifier.weight"], weights(tmp_path / "other")["model/classifier.weight"]
    )


def test_projection_is_in_force(tmp_path):
    result = fit(small_model(), *digits(), QUICK.override({"lr": 2.0, "weight_decay": 0.1}), tmp_path, quiet=True)
    assert all((m.lam1 >= 0).all() for m in result.model.modules() if isinstance(m, torchscn.SparseCoding2d))


@contextmanager
def running(folder: Path, *extra: str) -> Iterator[subprocess.Popen[str]]:
    """A training process, ended when the test leaves it."""
    command = [sys.executable, "-m", "torchscn", "train", "digits", "--run-dir", str(folder), "--epochs", "4"]
    command += ["--stem", "4", "--ema", "0.9", "--checkpoint-seconds", "0", *extra]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_middle_of_epoch(folder: Path, epoch: int) -> None:
    """Until a checkpoint inside that epoch (counted from 0) is on the disk."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            position = load_checkpoint(folder)[0].numbers["position"]
        except CheckpointError:
            position = {"epoch": -1, "batch": 0}
        if position["epoch"] == epoch and position["batch"] > 2:
            return
        time.sleep(0.02)
    raise AssertionError("the run did not get there")


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    with running(whole) as process:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    with running(broken) as process:
        wait_for_middle_of_epoch(broken, 1)
        process.send_signal(signal.SIGKILL)
    assert not (broken / "model.safetensors").exists()
    with running(broken, "--resume") as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "resuming in epoch 2" in out
    assert_same_weights(whole, broken)
    keep = ("epoch", "train_loss", "train_error", "test_loss", "test_error", "lr")
    curves = [
        [{key: json.loads(line)[key] for key in keep} for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (whole, broken)
    ]
    assert curves[0] == curves[1]


@pytest.mark.slow
def test_ctrl_c_ends_cleanly_with_a_checkpoint(tmp_path):
    with running(tmp_path) as process:
        wait_for_middle_of_epoch(tmp_path, 0)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "resume with --resume" in err
    assert "Traceback" not in err
    assert load_checkpoint(tmp_path)[1] is None
    trained = load_trained(tmp_path)
    assert "not finished" in trained.note


def test_divergence_stops_with_advice(tmp_path):
    with pytest.raises(DivergenceError, match="lower lr"):
        fit(small_model(), *digits(), TrainConfig(epochs=3, lr=1e25, warmup=0.0), tmp_path, quiet=True)


def test_a_run_is_not_overwritten(tmp_path):
    fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)
    with pytest.raises(ConfigError, match="--resume"):
        fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)
    with pytest.raises(CheckpointError, match="lr differ"):
        fit(small_model(), *digits(), QUICK.override({"lr": 0.3}), tmp_path, resume=True, quiet=True)
    # Resuming a finished run changes nothing.
    before = weights(tmp_path)
    fit(small_model(), *digits(), QUICK, tmp_path, resume=True, quiet=True)
    assert all(torch.equal(value, before[name]) for name, value in weights(tmp_path).items())


def test_a_finished_run_without_checkpoints_is_not_overwritten(tmp_path):
    fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)
    for name in (CURRENT, PREVIOUS):
        (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match="already holds a finished run"):
        fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)


def test_nothing_to_resume(tmp_path):
    with pytest.raises(ConfigError, match="no checkpoint to resume from"):
        fit(small_model(), *digits(), QUICK, tmp_path / "typo", resume=True, quiet=True)
    assert not (tmp_path / "typo").exists()


def test_environments_of_a_resumed_run_are_kept(tmp_path):
    fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)
    path = tmp_path / "environment.json"
    assert "resumed" not in json.loads(path.read_text())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"threads": 64, "command": "scn train first"}))
    fit(small_model(), *digits(), QUICK, tmp_path, resume=True, quiet=True)
    assert "resumed" not in json.loads(path.read_text()), "the run was finished"
    (tmp_path / CURRENT).unlink()  # the one before is of the last epoch's beginning
    fit(small_model(), *digits(), QUICK, tmp_path, resume=True, quiet=True)
    environment = json.loads(path.read_text())
    assert (environment["threads"], environment["command"]) == (64, "scn train first")
    assert [entry["after_epochs"] for entry in environment["resumed"]] == [1]
    assert environment["resumed"][0]["threads"] == torch.get_num_threads()


def test_truncated_checkpoint_falls_back(tmp_path, capsys):
    fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)
    content = (tmp_path / CURRENT).read_bytes()
    (tmp_path / CURRENT).write_bytes(content[: len(content) // 2])
    fit(small_model(), *digits(), QUICK, tmp_path, resume=True)
    assert "falling back" in capsys.readouterr().out
    (tmp_path / CURRENT).write_bytes(b"")
    (tmp_path / PREVIOUS).write_bytes(b"")
    with pytest.raises(CheckpointError, match="does not read"):
        fit(small_model(), *digits(), QUICK, tmp_path, resume=True, quiet=True)


def test_checkpoint_of_another_network(tmp_path):
    fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)
    other = Network([Row("sparse", 7), Row("conv", 8, 2)], 10, in_channels=1)
    with pytest.raises(CheckpointError, match=r"another network.*dictionary.*\(6, 1, 3, 3\).*\(7, 1, 3, 3\)"):
        fit(other, *digits(), QUICK, tmp_path, resume=True, quiet=True)


def test_full_disk_loses_nothing(tmp_path, monkeypatch):
    (tmp_path / "first").mkdir()
    save_checkpoint(tmp_path, Checkpoint({"model": {"a": torch.ones(3)}}, {"n": 1}))

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*another folder\.$"):
        save_checkpoint(tmp_path / "first", Checkpoint({"model": {"a": torch.zeros(3)}}, {"n": 2}))
    (tmp_path / "first").rmdir()
    with pytest.raises(OSError, match=r"No space left.*resume"):
        save_checkpoint(tmp_path, Checkpoint({"model": {"a": torch.zeros(3)}}, {"n": 2}))
    assert [path.name for path in tmp_path.iterdir()] == [CURRENT]
    assert load_checkpoint(tmp_path)[0].numbers == {"n": 1}


def test_leftovers_of_a_failed_start_do_not_block_the_folder(tmp_path):
    (tmp_path / "checkpoint.next.safetensors").touch()
    (tmp_path / "config.json").write_text(QUICK.override({"lr": 0.3}).to_json())
    assert len(fit(small_model(), *digits(), QUICK, tmp_path, quiet=True).metrics) == QUICK.epochs


def test_limit_keeps_all_classes():
    train_set, _ = load_data(TrainConfig(limit=200), None)
    assert len(train_set) == 200
    assert set(train_set.labels.tolist()) == set(range(10))


def test_batch_larger_than_the_data(tmp_path):
    with pytest.raises(ValueError, match="batch_size=64 is more than the 10 images"):
        train(QUICK.override({"limit": 10}), tmp_path, quiet=True)


def test_clip_bounds_the_step():
    model = small_model()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x, labels = torch.randn(16, 1, 8, 8), torch.arange(16) % 10
    train_step(model, optimizer, x, labels, clip=1e-3)
    moved = [p.detach() - old for p, old in zip(model.parameters(), before, strict=True)]
    assert float(torch.nn.utils.get_total_norm(moved)) == pytest.approx(1e-3, rel=1e-3)


def test_users_own_model_and_data(tmp_path):
    images = torch.randint(0, 40, (80, 1, 6, 6), dtype=torch.uint8)
    labels = torch.arange(80) % 2
    images[labels == 1] += 200
    own = data.ImageSet("bright", images, labels, ("dark", "bright"))
    model = nn.Sequential(torchscn.SparseCoding2d(1, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    config = TrainConfig(epochs=5, batch_size=16, lr=0.1)
    assert fit(model, own, own, config, tmp_path, quiet=True).metrics[-1]["test_error"] == 0


def test_tied_weights_are_kept(tmp_path):
    layer = nn.Conv2d(1, 1, 3, padding=1)
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.Flatten(), nn.Linear(64, 10))
    result = fit(model, *digits(), QUICK, tmp_path, quiet=True)
    assert torch.equal(weights(tmp_path)["model/2.weight"], result.model[0].weight)


def test_a_score_for_every_class(tmp_path):
    with pytest.raises(ValueError, match=r"\(64, 7\) of 64 images of 10 classes"):
        fit(small_model(num_classes=7), *digits(), QUICK, tmp_path, quiet=True)


def test_unknown_device(tmp_path):
    with pytest.raises(ValueError, match=r"device='gpu'.*cuda"):
        train(QUICK, tmp_path, device="gpu", quiet=True)


def test_another_solver_drops_the_cap_of_the_runs_own(tmp_path):
    train(QUICK.override({"solver": "fista", "tol": 0.0, "max_iter": 3, "grad": "unrolled"}), tmp_path, quiet=True)
    layer = load_trained(tmp_path, {"solver": "coordinate", "tol": 1e-5}).model.sparse_layers()[0][1]
    assert (layer.solver, layer.tol, layer.max_iter, layer.grad) == ("coordinate", 1e-5, None, "implicit")
    same = load_trained(tmp_path).model.sparse_layers()[0][1]
    assert (same.solver, same.tol, same.max_iter, same.grad) == ("fista", 0.0, 3, "unrolled")


def test_a_fixed_number_of_steps_is_no_failure(tmp_path, capsys):
    config = QUICK.override({"solver": "fista", "tol": 0.0, "max_iter": 3})
    result = train(config, tmp_path)
    assert "does not converge" not in capsys.readouterr().out
    assert {layer["converged"] for layer in result.metrics[-1]["layers"]} == {None}


def test_trained_model_loads_ready_to_use(tmp_path):
    config = QUICK.override({"model": "cnn1"})
    result = train(config, tmp_path, quiet=True)
    model = load_trained(tmp_path).model
    assert model.classes == tuple("0123456789")
    assert model.image_size == (8, 8)
    x = model.preprocess(data.load("digits", "test").images[:20])
    assert torch.equal(model(x), result.model.eval()(x))


def test_a_trained_network_knows_what_it_was_trained_on(tmp_path):
    model = train(QUICK, tmp_path, quiet=True).model
    images = data.load("digits", "test").images[:4]
    assert model.classes == tuple("0123456789")
    assert model.image_size == (8, 8)
    loaded = load_trained(tmp_path).model
    assert torch.equal(model.preprocess(images), loaded.preprocess(images))


def test_a_network_of_the_package_is_loaded_by_its_name():
    trained = load_trained("scn4-mnist", {"tol": 1e-4})
    assert trained.model.sparse_layers()[0][1].tol == 1e-4
    assert (trained.config.data, trained.config.model) == ("mnist", "scn4")
    with pytest.raises(ValueError, match="neither a run folder nor a network of the package"):
        load_trained("scn4-mnits")
