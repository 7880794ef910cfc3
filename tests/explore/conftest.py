"""Networks to explore, and a server for each."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from torchscn import create_model
from torchscn.data import Normalization
from torchscn.explore import Explorer, make_server
from torchscn.explore.server import ExploreServer
from torchscn.training import TrainConfig, load_trained
from torchscn.training.run_folder import TrainedModel


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """As the command has it: threads wait for each other longer than one image takes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(model: str = "scn1", channels: int = 1, side: int = 8, data: str = "digits", **options) -> TrainedModel:
    """A network for digits that knows what it needs, with random weights."""
    torch.manual_seed(0)
    network = create_model(model, num_classes=10, in_channels=channels, stem=4, **options)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    normalization = Normalization(torch.full((channels, 1, 1), 0.3), torch.ones(channels, 1, 1))
    network.remember(normalization, tuple("0123456789"), (side, side))
    return TrainedModel(network.eval(), TrainConfig(data=data, model=model), None)


@pytest.fixture(scope="package")
def mnist() -> TrainedModel:
    return load_trained("scn4-mnist")


@contextmanager
def serving(explorer: Explorer) -> Iterator[ExploreServer]:
    """A server that answers while the block runs."""
    with make_server(explorer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
