import pytest
import torch

from torchscn.kernels import available_kernels


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=available_kernels())
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every kernel this machine runs, in force for the test."""
    monkeypatch.setenv("TORCHSCN_KERNEL", request.param)
    return request.param
