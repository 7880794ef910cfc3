"""The loop on the embedded digits: it learns, repeats itself exactly, and survives what can happen to it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from runs import QUICK, assert_same_weights, digits, small_model, train_until_interrupted, weights
from torch import nn

import torchscn
from torchscn import data
from torchscn.training import (
    CheckpointError,
    DivergenceError,
    TrainConfig,
    fit,
    load_data,
    load_trained,
    loop,
    train,
)
from torchscn.training.checkpoint import CURRENT, PREVIOUS, load_checkpoint
from torchscn.training.loop import train_step
from torchscn.training.run_folder import RunFolder


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


def test_fewer_tests_change_nothing_else(tmp_path, capsys):
    always = train(QUICK, tmp_path / "always", quiet=True)
    rarely = train(QUICK.override({"test_every": 2}), tmp_path / "rarely")
    assert_same_weights(tmp_path / "always", tmp_path / "rarely")
    first, last = RunFolder(tmp_path / "rarely").read_metrics()
    assert [first, last] == rarely.metrics
    assert always.metrics[0].keys() - first.keys() == {"test_loss", "test_error", "evaluation_seconds", "layers"}
    assert last["test_error"] == always.metrics[1]["test_error"]
    lines = capsys.readouterr().out.splitlines()
    assert ["test error" in line for line in lines if line.startswith("epoch")] == [False, True]
    assert (tmp_path / "rarely" / "curves.png").exists()


def test_projection_is_in_force(tmp_path):
    result = fit(small_model(), *digits(), QUICK.override({"lr": 2.0, "weight_decay": 0.1}), tmp_path, quiet=True)
    assert all((m.lam1 >= 0).all() for m in result.model.modules() if isinstance(m, torchscn.SparseCoding2d))


def test_images_are_small_early_and_full_later(tmp_path):
    model, sizes = small_model(), []
    model.register_forward_pre_hook(
        lambda module, inputs: sizes.append(inputs[0].shape[-1]) if module.training else None
    )
    fit(model, *digits(), QUICK.override({"early_size": 0.75}), tmp_path, quiet=True)
    assert sizes == [6] * (len(sizes) // 2) + [8] * (len(sizes) // 2)


def test_the_bound_on_atoms_is_in_force(tmp_path):
    result = fit(small_model(), *digits(), QUICK.override({"max_norm": 0.25, "ema": 0.0}), tmp_path, quiet=True)
    norms = result.model.blocks[0][1].dictionary.flatten(1).norm(dim=1)
    assert norms.max() <= 0.25 * (1 + 1e-5)
    assert norms.max() > 0.24


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
@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["--optimizer", "muon", "--decay-lam1", "false", "--early-size", "0.75", "--flip", "--alternate-flip"],
        ["--shortcuts", "projected", "--max-norm", "0.5"],
    ],
)
def test_killed_and_resumed_equals_uninterrupted(tmp_path, settings):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    with running(whole, *settings) as process:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    with running(broken, *settings) as process:
        wait_for_middle_of_epoch(broken, 1)
        process.send_signal(signal.SIGKILL)
    assert not (broken / "model.safetensors").exists()
    with running(broken, "--resume", *settings) as process:
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


@pytest.mark.parametrize("shortcuts", ["pooled", "projected"])
@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_a_network_with_shortcuts_is_resumed_exactly(tmp_path, monkeypatch, shortcuts, optimizer):
    config = QUICK.override({"shortcuts": shortcuts, "optimizer": optimizer, "checkpoint_seconds": 0.0})
    train(config, tmp_path / "whole", quiet=True)
    train_until_interrupted(config, tmp_path / "broken", 5, monkeypatch)  # an epoch has four steps
    assert load_checkpoint(tmp_path / "broken")[0].position.batch == 1
    train(config, tmp_path / "broken", resume=True, quiet=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "broken")


def test_learning_rate_of_an_epoch_that_was_resumed_after_its_last_step(tmp_path, monkeypatch):
    config = QUICK.override({"checkpoint_seconds": 0.0})
    whole = fit(small_model(), *digits(), config, tmp_path / "whole", quiet=True)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate", stop)
        with pytest.raises(KeyboardInterrupt):
            fit(small_model(), *digits(), config, tmp_path / "broken", quiet=True)
    assert load_checkpoint(tmp_path / "broken")[0].position.batch == len(digits()[0]) // config.batch_size
    resumed = fit(small_model(), *digits(), config, tmp_path / "broken", resume=True, quiet=True)
    assert [entry["lr"] for entry in resumed.metrics] == [entry["lr"] for entry in whole.metrics]
    assert_same_weights(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_cleanly_with_a_checkpoint(tmp_path, number):
    with running(tmp_path) as process:
        wait_for_middle_of_epoch(tmp_path, 0)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "resume with --resume" in err
    assert "Traceback" not in err
    assert load_checkpoint(tmp_path)[1] is None
    trained = load_trained(tmp_path)
    assert "not finished" in trained.note


def test_divergence_stops_with_advice(tmp_path):
    with pytest.raises(DivergenceError, match="lower lr"):
        fit(small_model(), *digits(), TrainConfig(epochs=3, lr=1e25, warmup=0.0), tmp_path, quiet=True)


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
    train_step(model, optimizer, x, labels, TrainConfig(clip=1e-3))
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


def test_a_score_for_every_class(tmp_path):
    with pytest.raises(ValueError, match=r"\(64, 7\) for 64 images of 10 classes"):
        fit(small_model(num_classes=7), *digits(), QUICK, tmp_path, quiet=True)


def test_unknown_device(tmp_path):
    with pytest.raises(ValueError, match=r"device='gpu'.*cuda"):
        train(QUICK, tmp_path, device="gpu", quiet=True)


def test_a_fixed_number_of_steps_is_no_failure(tmp_path, capsys):
    config = QUICK.override({"solver": "fista", "tol": 0.0, "max_iter": 3})
    result = train(config, tmp_path)
    assert "does not converge" not in capsys.readouterr().out
    assert {layer["converged"] for layer in result.metrics[-1]["layers"]} == {None}
