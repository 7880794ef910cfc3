"""The kernels compile for real devices, and fit. The interpreter accepts what the compiler does not."""

import json
import os
import subprocess
import sys

import pytest

from tools.gpu_resources import SHARED_KILOBYTES, Needs
from tools.results.gpu import make_resource_table
from torchscn.kernels.gpu import why_no_triton


def compiled(device: int, *kernels: str) -> list[Needs]:
    """In a process of its own: here, kernels are interpreted."""
    if why_no_triton():
        pytest.skip(why_no_triton())
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tools.gpu_resources", "--devices", str(device), "--kernels", *kernels]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return [Needs(**needs) for needs in json.loads(done.stdout)]


@pytest.mark.parametrize("device", [80, 90])
def test_sweeps_spill_nothing(device):
    found = compiled(device, "small", "blocks")
    assert len(found) == 10
    for needs in found:
        assert needs.registers <= 255
        assert needs.spilled_bytes <= (64 if needs.constraint == "bounds" else 0), needs
        assert needs.shared_bytes <= SHARED_KILOBYTES * 1024


def test_others_fit():
    found = compiled(80, "scale_gram", "set_limits", "finish")
    assert len(found) == 16
    assert all(needs.shared_bytes <= SHARED_KILOBYTES * 1024 for needs in found)
    assert all(needs.spilled_bytes <= 256 for needs in found)


def test_table():
    name = ("small", "bounds", "64 signals")
    table = make_resource_table([Needs(80, *name, 250, 0, 2048), Needs(90, *name, 9, 8, 1)])
    assert "sm_80 (A100)" in table
    assert "250 / 0" in table
    assert "9 / 8" in table
    assert "2 KB" in table
