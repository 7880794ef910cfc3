"""Nothing is read back from the device, and nothing is on another one: runs on tensors without numbers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchscn.kernels.gpu import why_no_triton

SCRIPT = Path(__file__).with_name("fake_cuda.py")
GUARD = Path(__file__).with_name("fake_guard.cpp")


@pytest.fixture(scope="module")
def guard(tmp_path_factory) -> Path:
    """A library that lets a CPU build of torch handle CUDA tensors without memory."""
    root, library = Path(torch.__file__).parent, tmp_path_factory.mktemp("guard") / "guard.so"
    command = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{root / 'include'}", str(GUARD), "-o", str(library)]
    try:
        subprocess.run([*command, f"-L{root / 'lib'}", "-lc10"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs a C++ compiler and the headers of torch: {error}")
    return library


def test_on_fake_cuda_tensors(guard):
    if why_no_triton():
        pytest.skip(why_no_triton())
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    done = subprocess.run([sys.executable, str(SCRIPT), str(guard)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["48", "solves,", "network", "done"]
