"""Short runs for the tests of training."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from torchscn import data
from torchscn.network import Network, Row
from torchscn.training import TrainConfig, loop, train
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


def train_until_interrupted(config: TrainConfig, folder: Path, n_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train, but as if somebody had ended the process without warning after some steps."""
    left = iter(range(n_steps))

    def step(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return train_step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", step)
        with pytest.raises(KeyboardInterrupt):
            train(config, folder, quiet=True)
