"""Short runs for the tests of training."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from torchscn import data
from torchscn.network import Network, Row
from torchscn.training import (
    TrainConfig,
)

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
