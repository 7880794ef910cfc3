from pathlib import Path

import pytest

from torchscn import data
from torchscn.network import Network
from torchscn.training import TrainConfig, load_trained, train


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has seen enough digits to be better than chance."""
    folder = tmp_path_factory.mktemp("runs") / "digits-<b>&"
    train(TrainConfig(epochs=2, batch_size=64, options={"stem": 4}), folder, quiet=True)
    return folder


@pytest.fixture(scope="session")
def network(digits_run: Path) -> Network:
    return load_trained(digits_run).model


@pytest.fixture(scope="session")
def images() -> data.ImageSet:
    return data.load("digits", "test").take(range(80))
