"""Solve on CUDA tensors that have no numbers: reading one, or mixing devices, is an error. Run by test_no_reads.py.

The kernels themselves are replaced by notes of their launches: they have nothing to work on.
"""

import contextlib
import itertools
import os
import sys

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import torchscn
from torchscn import gradients
from torchscn import network as network_module
from torchscn.constraints import Bounds, Constraint, NonNegative, OnSupport
from torchscn.kernels import SweepRule, gpu
from torchscn.kernels.gpu import launch, prepare
from torchscn.problem import Affine, Problem

N_SIGNALS = 35
N_LAYERS = 14  # of sparse coding in the network
N_KERNELS = 4  # launched for a solve


class Launches:
    """Stands in for a kernel."""

    def __init__(self) -> None:
        self.devices: list[set[str]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> "Launches":
        return self

    def __call__(self, *arguments: object, **options: object) -> None:
        self.devices.append({argument.device.type for argument in arguments if isinstance(argument, Tensor)})


def on_gpu(*shape: int) -> Tensor:
    return torch.empty(*shape, device="cuda")


def constraint_of(kind: str, n_atoms: int) -> Constraint:
    if kind == "non_negative":
        return NonNegative()
    if kind == "on_support":
        return OnSupport(on_gpu(N_SIGNALS, n_atoms))
    return Bounds(on_gpu(n_atoms), on_gpu(N_SIGNALS, n_atoms), on_gpu(n_atoms))


def solve(n_atoms: int, kind: str, everything: bool, rule: SweepRule) -> None:
    problem = Problem(on_gpu(N_SIGNALS, n_atoms), on_gpu(n_atoms, n_atoms), constraint=constraint_of(kind, n_atoms))
    if everything:
        affine = Affine(on_gpu(n_atoms), on_gpu(n_atoms))
        problem = Problem(
            problem.rhs, problem.gram, on_gpu(n_atoms), on_gpu(N_SIGNALS, n_atoms), problem.constraint, affine
        )
    result = launch.triton_sweeps(problem, rule)
    assert (result.codes.device.type, result.converged.device.type) == ("cuda", "cuda")
    assert result.codes.shape == problem.rhs.shape


def run_network(launches: Launches) -> None:
    """Forward through a whole network as in training, and with norms fused as in evaluation."""
    gpu._is_new_enough = lambda device: True
    gradients._is_traced = lambda rhs: False  # a tracer would see one operator and nothing inside it
    with torch.device("cuda"):
        network = torchscn.create_model("scn2")
    for training in (True, False):
        launches.devices.clear()
        network.train(training)
        network_module.can_fuse = lambda *_: not network.training  # which it would refuse such tensors
        with torch.set_grad_enabled(training):
            assert network(on_gpu(2, 3, 32, 32)).shape == (2, 10)
        assert len(launches.devices) == N_KERNELS * N_LAYERS


def run_training_step(launches: Launches) -> None:
    """Forward and backward; on fake CPU tensors, because torch has no streams for a backward pass on fake CUDA ones."""
    os.environ.update(TORCHSCN_KERNEL="triton", TRITON_INTERPRET="1")
    launches.devices.clear()
    network = torchscn.create_model("scn2").train()
    network(torch.empty(2, 3, 32, 32)).sum().backward()
    assert len(launches.devices) == 2 * N_KERNELS * N_LAYERS


def main() -> None:
    torch.ops.load_library(sys.argv[1])
    launches = Launches()
    launch.sweep_small = launch.sweep_blocks = launch.finish_rows = launches
    prepare.scale_gram = prepare.set_limits = launches
    launch._device_of = lambda rhs: contextlib.nullcontext()  # there is none to switch to
    rules = [SweepRule(1e-3, 100, by_block, 1e-2, 1e-6, finishes) for by_block in (0, 1) for finishes in (0, 1)]
    with FakeTensorMode():
        cases = list(itertools.product((9, 40), ("non_negative", "on_support", "bounds"), (False, True), rules))
        for case in cases:
            solve(*case)
        assert launches.devices
        assert set.union(*launches.devices) == {"cuda"}
        run_network(launches)
        run_training_step(launches)
    print(len(cases), "solves, network done")


if __name__ == "__main__":
    main()
