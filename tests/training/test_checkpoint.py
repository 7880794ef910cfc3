"""Checkpoints: a damaged one falls back, a full disk loses nothing."""

import dataclasses
import os

import pytest
import torch
from runs import QUICK, digits, small_model, weights
from torch import nn

from torchscn.network import Network, Row
from torchscn.training import (
    CheckpointError,
    fit,
)
from torchscn.training.checkpoint import CURRENT, PREVIOUS, Checkpoint, Position, load_checkpoint, save_checkpoint
from torchscn.training.curves import draw_curves
from torchscn.training.run_folder import RunFolder


def checkpoint(epoch: int) -> Checkpoint:
    """A small one that says which it is."""
    position = Position(epoch=epoch)
    return Checkpoint({"model": {"a": torch.full((3,), float(epoch))}}, {"position": dataclasses.asdict(position)})


def test_truncated_checkpoint_falls_back(tmp_path, capsys):
    fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)
    content = (tmp_path / CURRENT).read_bytes()
    (tmp_path / CURRENT).write_bytes(content[: len(content) // 2])
    fit(small_model(), *digits(), QUICK, tmp_path, resume=True)
    assert "Falling back" in capsys.readouterr().out
    (tmp_path / CURRENT).write_bytes(b"")
    (tmp_path / PREVIOUS).write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be read"):
        fit(small_model(), *digits(), QUICK, tmp_path, resume=True, quiet=True)


def test_checkpoint_of_another_network(tmp_path):
    fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)
    other = Network([Row("sparse", 7), Row("conv", 8, 2)], 10, in_channels=1)
    with pytest.raises(CheckpointError, match=r"another network.*dictionary.*\(6, 1, 3, 3\).*\(7, 1, 3, 3\)"):
        fit(other, *digits(), QUICK, tmp_path, resume=True, quiet=True)


def test_full_disk_loses_nothing(tmp_path, monkeypatch):
    (tmp_path / "first").mkdir()
    save_checkpoint(tmp_path, checkpoint(1))

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*another folder\.$"):
        save_checkpoint(tmp_path / "first", checkpoint(2))
    (tmp_path / "first").rmdir()
    with pytest.raises(OSError, match=r"No space left.*resume"):
        save_checkpoint(tmp_path, checkpoint(2))
    assert [path.name for path in tmp_path.iterdir()] == [CURRENT]
    assert load_checkpoint(tmp_path)[0].position == Position(1)


def test_a_full_disk_at_the_records_is_one_sentence(tmp_path, monkeypatch):
    run = RunFolder(tmp_path)
    run.write_metrics([{"epoch": 1}])

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"could not write .*metrics\.jsonl.*No space left.*another folder\.$"):
        run.write_metrics([{"epoch": 1}, {"epoch": 2}])
    with pytest.raises(OSError, match=r"could not write .*curves\.png.*No space left"):
        draw_curves(run.curves, [{"epoch": 1, "train_error": 1.0, "test_error": 2.0}], "title")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert run.metrics.read_text() == '{"epoch": 1}\n'


def test_tied_weights_are_kept(tmp_path):
    layer = nn.Conv2d(1, 1, 3, padding=1)
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.Flatten(), nn.Linear(64, 10))
    result = fit(model, *digits(), QUICK, tmp_path, quiet=True)
    assert torch.equal(weights(tmp_path)["model/2.weight"], result.model[0].weight)
