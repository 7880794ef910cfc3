"""Multiple processes: torchrun starts them, DistributedDataParallel averages their gradients.

Every rank takes its share of each global batch, and batch norm computes its statistics over all of them, so N ranks do
what one process does on the same global batch (up to rounding).
"""

import os
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from torchscn import checks
from torchscn.tensors import full_precision

__all__ = [
    "Process",
    "SyncedBatchNorm2d",
    "start_process",
    "stop_process",
    "sum_over_ranks",
    "synchronize_norms",
    "was_restarted",
    "wrap",
]


class Process:
    """This process among all: its rank, the number of processes, and its device."""

    def __init__(self, rank: int = 0, world_size: int = 1, device: torch.device | None = None):
        self.rank, self.world_size = rank, world_size
        self.device = device or torch.device("cpu")

    @property
    def is_main(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0


def start_process(device: str = "auto") -> Process:
    """Join the other processes if torchrun started this one; otherwise run alone.

    Args:
        device: ``"cpu"``, ``"cuda"``, or ``"auto"`` for CUDA if available.
    """
    checks.check_choice("device", device, ("auto", "cpu", "cuda"))
    use_cuda = torch.cuda.is_available() if device == "auto" else device == "cuda"
    if use_cuda and not torch.cuda.is_available():
        raise ValueError("device='cuda' was requested, but torch finds no CUDA device; use device='cpu'.")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")
    if "RANK" not in os.environ:
        return Process(device=place)
    if use_cuda:
        torch.cuda.set_device(place)
    if not dist.is_initialized():
        store, rank, world_size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        # After a restart, torchrun's store still holds the addresses of the previous processes; a prefix hides them.
        store = dist.PrefixStore(f"start {_n_restarts()}", store)  # type: ignore[attr-defined]
        dist.init_process_group("nccl" if use_cuda else "gloo", store=store, rank=rank, world_size=world_size)
    return Process(dist.get_rank(), dist.get_world_size(), place)


def stop_process() -> None:
    """Leave the other processes, if there are any, once all of them are done."""
    if dist.is_available() and dist.is_initialized():
        # Gloo's threads outlive the group and may still hold tensors of the last sums. Python must not end before they
        # let go (the process would abort); a barrier holds no tensor of Python's, and comes after all the sums.
        dist.barrier()
        dist.destroy_process_group()


def was_restarted() -> bool:
    """Whether torchrun started this process again after a failure."""
    return _n_restarts() > 0


def _n_restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def wrap(model: nn.Module, process: Process, compiled: bool = False) -> nn.Module:
    """The model to call in training: itself or its compiled form, with gradients averaged over all ranks.

    It has the parameters of ``model``, which stays as it is: the names of weights do not change. Only its batch norms
    are made to share their statistics, in place.
    """
    if process.world_size > 1:
        synchronize_norms(model)
    # The inner module, as torch's manual advises: the compiler does not handle the wrapper well.
    replica = cast(nn.Module, torch.compile(model)) if compiled else model
    if process.world_size == 1:
        return replica
    devices = [process.device.index] if process.device.type == "cuda" else None
    return DistributedDataParallel(replica, device_ids=devices)


def synchronize_norms(model: nn.Module) -> None:
    """Make every ``BatchNorm2d`` in ``model`` compute its statistics over all ranks, in place; names do not change."""
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SyncedBatchNorm2d


class SyncedBatchNorm2d(nn.BatchNorm2d):
    """``BatchNorm2d`` over the batches of all ranks, on any device (torch's own needs CUDA)."""

    evaluates_as_batch_norm = True  # so that evaluation may fuse it with the layer before it

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and dist.is_initialized() and dist.get_world_size() > 1):
            return super().forward(x)
        (x,) = full_precision(x)  # statistics in half precision are of no use
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        out, mean, variance, n = _SyncedNorm.apply(x, self.eps)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            momentum = 0.1 if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * n / (n - 1), momentum)
            self.num_batches_tracked += 1
        if self.affine:
            out = torch.addcmul(self.bias[:, None, None], out, self.weight[:, None, None])
        normalized: Tensor = out
        return normalized


class _SyncedNorm(torch.autograd.Function):
    """``(x - mean) / std`` with the statistics of all ranks; torch's own kernels pass over the memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        local_mean, local_variance = torch.batch_norm_update_stats(x, None, None, 0.0)
        n_local = x.numel() // x.shape[1]
        # Sums of small vectors in double precision: squares minus squared means cancel.
        mean, square = local_mean.double(), local_variance.double() + local_mean.double().square()
        # Filled and not copied from the CPU, which would have to wait for the device.
        total = torch.cat([n_local * mean, n_local * square, mean.new_full((1,), n_local)])
        dist.all_reduce(total)
        n = total[-1]
        mean, square = (total[:-1] / n).chunk(2)
        variance = square - mean.square()
        ctx.n, ctx.eps = n, eps
        mean, variance = mean.to(x.dtype), variance.to(x.dtype)
        ctx.save_for_backward(x, mean, variance)
        ctx.mark_non_differentiable(mean, variance, n)
        return F.batch_norm(x, mean, variance, eps=eps), mean, variance, n

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None]:
        x, mean, variance = ctx.saved_tensors
        ones = torch.ones_like(mean)
        # The gradients that scale and bias would have are the two sums needed.
        _, along, total = torch.ops.aten.native_batch_norm_backward(
            grad, x, ones, mean, variance, None, None, False, ctx.eps, [False, True, True]
        )
        sums = torch.cat([along, total])
        dist.all_reduce(sums)
        along, total = (sums / ctx.n.to(x.dtype)).chunk(2)
        inverse = (variance + ctx.eps).rsqrt()
        # grad_x = inverse * (grad - total - normalized x * along), as a scale and an offset of x plus a scale of grad
        slope = -inverse.square() * along
        offset = -inverse * total - slope * mean
        grad_x = F.batch_norm(x, torch.zeros_like(mean), ones, slope, offset, eps=0.0)
        return grad_x.addcmul_(grad, inverse[:, None, None]), None


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of every rank's values; with one process, the values themselves."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(values)
    return values
