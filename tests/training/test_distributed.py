"""Several processes do what one does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from torch.testing import assert_close

from torchscn.network import LayerOptions, Network, Row
from torchscn.training.checkpoint import CheckpointError, load_checkpoint
from torchscn.training.distributed import Process, synchronize_norms, wrap


def network(affine: bool, shortcuts: str = "none") -> Network:
    torch.manual_seed(0)
    options = LayerOptions(tol=1e-12, lam2=1e-2, affine=affine, shortcuts=shortcuts)
    table = [Row("sparse", 6), Row("sparse", 8, 2), Row("conv", 5), Row("sparse", 9)]
    return Network(table, 4, in_channels=2, options=options).double()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 2, 6, 6, generator=generator, dtype=torch.float64)
    return x, torch.arange(8) % 4


def gradients(model: torch.nn.Module, replica: torch.nn.Module, x: torch.Tensor, labels: torch.Tensor):
    F.cross_entropy(replica(x), labels).backward()
    named = {name: parameter.grad for name, parameter in model.named_parameters()}
    return named | {name: value for name, value in model.named_buffers() if "running" in name}


CASES = (  # affine, compiled, shortcuts
    *((False, False, "none"), (True, False, "none"), (True, True, "none")),
    *((True, False, "pooled"), (False, False, "projected"), (True, True, "projected")),
)


def rank_gradients(rank: int, world_size: int, folder: str) -> None:
    """The gradients of every case, as one of the processes finds them."""
    torch.set_num_threads(1)
    torch.compile = partial(torch.compile, backend="eager")  # traces the network without making code for it
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    x, labels = batch()
    for number, (affine, compiled, shortcuts) in enumerate(CASES):
        model = network(affine, shortcuts)
        replica = wrap(model, Process(rank, world_size), compiled)
        found = gradients(model, replica, x[rank::world_size], labels[rank::world_size])
        torch.save(found, f"{folder}/case{number}-rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_gradients_over_two_ranks_equal_one_process(tmp_path):
    """All cases in one test: starting two processes takes most of the time."""
    mp.spawn(rank_gradients, args=(2, str(tmp_path)), nprocs=2)
    for number, (affine, compiled, shortcuts) in enumerate(CASES):
        model = network(affine, shortcuts)
        expected = gradients(model, model, *batch())
        for rank in range(2):
            found = torch.load(tmp_path / f"case{number}-rank{rank}.pt", weights_only=True)
            assert found.keys() == expected.keys()
            for name in expected:
                where = f"{name} with {affine=}, {compiled=}, {shortcuts=}"
                assert_close(
                    found[name], expected[name], atol=1e-9, rtol=1e-7, msg=lambda text, where=where: f"{where}: {text}"
                )


@contextmanager
def two_pretended_ranks() -> Iterator[None]:
    """A group in which the other rank contributes nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_shared_statistics_are_in_float32_under_autocast():
    norm = torch.nn.BatchNorm2d(3)
    synchronize_norms(norm)
    x = (torch.randn(8, 3, 4, 4) + 1).bfloat16().requires_grad_()
    with two_pretended_ranks(), torch.autocast("cpu", dtype=torch.bfloat16):
        out = norm(x)
        out.square().sum().backward()
    assert out.dtype == norm.running_mean.dtype == torch.float32
    assert_close(norm.running_mean, 0.1 * x.detach().float().mean((0, 2, 3)))
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("compiled", [False, True])
def test_one_process_calls_the_network_itself_or_its_compiled_form(monkeypatch, compiled):
    monkeypatch.setattr(torch, "compile", lambda module: ("compiled", module))
    model = torch.nn.Linear(2, 2)
    assert wrap(model, Process(), compiled) == (("compiled", model) if compiled else model)


@contextmanager
def torchrun(folder: Path, *extra: str) -> Iterator[subprocess.Popen[str]]:
    """Two training processes, ended when the test leaves them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *extra]
    command += ["-m", "torchscn", "train", "digits", "--run-dir", str(folder), "--epochs", "3", "--threads", "1"]
    command += ["--stem", "4", "--checkpoint-seconds", "0", "--limit", "512"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def wait_for_epoch(folder: Path, epoch: int) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            if load_checkpoint(folder)[0].numbers["position"]["epoch"] >= epoch:
                return
        except CheckpointError:
            pass
        time.sleep(0.05)
    raise AssertionError("the run did not get there")


def workers_of(pid: int) -> list[int]:
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(child) for child in children.split()]


@pytest.mark.slow
def test_killed_worker_restarts_from_the_checkpoint(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    with torchrun(whole) as process:
        _, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
    with torchrun(broken, "--max-restarts", "1") as process:
        wait_for_epoch(broken, 1)
        os.kill(workers_of(process.pid)[-1], signal.SIGKILL)
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
    assert "resuming in epoch" in out
    ours, theirs = load_file(whole / "model.safetensors"), load_file(broken / "model.safetensors")
    for name in ours:
        assert_close(theirs[name], ours[name])


def test_torchrun_needs_a_run_folder():
    result = subprocess.run(
        [sys.executable, "-m", "torchscn", "train", "digits"],
        env=os.environ | {"RANK": "0"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert "--run-dir" in result.stderr
