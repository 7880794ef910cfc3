"""More than one process: torchrun starts them, DistributedDataParallel averages their gradients.

Every rank takes its share of each global batch, and batch norm takes its statistics over all of them, so N ranks do
what one process does on the same global batch (up to rounding).
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["Process", "SyncedBatchNorm2d", "start_process", "sum_over_ranks", "synchronize_norms", "wrap"]


class Process:
    """This process's place among all: rank, how many there are, and its device."""

    def __init__(self, rank: int = 0, world_size: int = 1, device: torch.device | None = None):
        self.rank, self.world_size = rank, world_size
        self.device = device or torch.device("cpu")

    @property
    def is_main(self) -> bool:
        """Whether this is the one that prints and writes."""
        return self.rank == 0


def start_process(device: str = "auto") -> Process:
    """Join the other processes if torchrun started this one; otherwise be alone.

    Args:
        device: ``"cpu"``, ``"cuda"``, or ``"auto"`` for CUDA where there is one.
    """
    use_cuda = torch.cuda.is_available() if device == "auto" else device == "cuda"
    if use_cuda and not torch.cuda.is_available():
        raise ValueError("device='cuda' was asked for, but torch finds no CUDA device; use device='cpu'.")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")
    if "RANK" not in os.environ:
        return Process(device=place)
    if use_cuda:
        torch.cuda.set_device(place)
    if not dist.is_initialized():
        store, rank, world_size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        # After a restart torchrun's store still holds the addresses of the processes before; a prefix hides them.
        store = dist.PrefixStore(f"start {_n_restarts()}", store)  # type: ignore[attr-defined]
        dist.init_process_group("nccl" if use_cuda else "gloo", store=store, rank=rank, world_size=world_size)
    return Process(dist.get_rank(), dist.get_world_size(), place)


def stop_process() -> None:
    """Leave the other processes, if there are any."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def was_restarted() -> bool:
    """Whether torchrun started this process again after a failure."""
    return _n_restarts() > 0


def _n_restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def wrap(model: nn.Module, process: Process) -> nn.Module:
    """The model to call in training: itself, or one whose gradients are averaged over all ranks.

    Batch norms of ``model`` are made to share their statistics, in place.
    """
    if process.world_size == 1:
        return model
    synchronize_norms(model)
    devices = [process.device.index] if process.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices)


def synchronize_norms(model: nn.Module) -> None:
    """Let every ``BatchNorm2d`` inside ``model`` take its statistics over all ranks, in place; names do not change."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.BatchNorm2d:
                child.__class__ = SyncedBatchNorm2d
                setattr(module, name, child)


class SyncedBatchNorm2d(nn.BatchNorm2d):
    """``BatchNorm2d`` over the batches of all ranks, on any device (torch's own needs CUDA)."""

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and dist.is_initialized() and dist.get_world_size() > 1):
            return super().forward(x)
        assert self.momentum is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        n_local = x.numel() // x.shape[1]
        total = _all_sum(torch.cat([x.sum((0, 2, 3)), x.new_tensor([float(n_local)])]))
        n = total[-1].detach()
        mean = total[:-1] / n
        centred = x - mean[:, None, None]
        variance = _all_sum(centred.square().sum((0, 2, 3))) / n
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * n / (n - 1), self.momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked += 1
        out = centred * (variance + self.eps).rsqrt()[:, None, None]
        if self.affine:
            out = out * self.weight[:, None, None] + self.bias[:, None, None]
        return out


class _AllSum(torch.autograd.Function):
    """Sum over all ranks; so is its gradient, since every rank's loss depends on the sum."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        values = values.clone()
        dist.all_reduce(values)
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


def _all_sum(values: Tensor) -> Tensor:
    summed: Tensor = _AllSum.apply(values)  # type: ignore[no-untyped-call]
    return summed


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of every rank's values; the values themselves when alone."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(values)
    return values
