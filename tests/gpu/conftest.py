import pytest

from torchscn.kernels.gpu import why_no_triton


@pytest.fixture
def triton(monkeypatch):
    """Solve by the Triton kernels, on CPU tensors in the interpreter."""
    if why_no_triton():
        pytest.skip(why_no_triton())
    monkeypatch.setenv("TORCHSCN_KERNEL", "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
