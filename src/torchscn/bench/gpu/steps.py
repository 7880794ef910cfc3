"""Steps of whole networks on a GPU: time and memory of training and inference, beside the convolutional twins."""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from torchscn.bench.gpu.kernel import describe_error, kernel_in_force
from torchscn.bench.problems import ImageBatch
from torchscn.bench.steps import inference_step, training_step
from torchscn.bench.timing import best_times
from torchscn.models import create_model

__all__ = [
    "BUDGET_SECONDS",
    "MODES",
    "OUT_OF_MEMORY",
    "PRECISIONS",
    "StepGroup",
    "Timing",
    "list_groups",
    "measure_group",
]

BUDGET_SECONDS = 4.0
"""For all rounds of one measurement; what would take longer runs once."""

MODES = {"training": training_step, "inference": inference_step}
PRECISIONS: dict[str, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16}
"""The type that autocast computes in, or None without autocast."""

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class StepGroup:
    """A network with each kernel, and its twin, to be measured side by side."""

    network: str
    mode: str
    precision: str
    kernels: tuple[str, ...]
    batch: ImageBatch = field(default_factory=ImageBatch)

    def __str__(self) -> str:
        return f"{self.mode} of {self.network} in {self.precision}"

    @property
    def twin(self) -> str:
        return self.network.replace("scn", "cnn")

    def competitors(self) -> list[tuple[str, str]]:
        """Networks and kernels, the twin first; it needs none."""
        return [(self.twin, "none"), *((self.network, kernel) for kernel in self.kernels)]


@dataclass(frozen=True)
class Timing:
    """What came of one measurement."""

    network: str
    mode: str
    precision: str
    kernel: str
    seconds: float | None = None  # the best step
    first_seconds: float | None = None  # the first step, with everything that is compiled for it
    peak_mebibytes: float | None = None  # with parameters and optimizer
    problem: str | None = None

    def as_row(self) -> dict[str, Any]:
        """Plain values for a file, without what is not known."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def list_groups(
    kernels: Iterable[str], widths: Iterable[int] = (1, 2, 4), batch: ImageBatch | None = None
) -> list[StepGroup]:
    """Everything that is measured."""
    return [
        StepGroup(f"scn{width}", mode, precision, tuple(kernels), batch or ImageBatch())
        for width in widths
        for precision in PRECISIONS
        for mode in MODES
    ]


def measure_group(group: StepGroup, rounds: int, device: torch.device) -> list[Timing]:
    """Warm up each competitor, then let them take turns; one that fails does not stop the others."""
    competitors = [_Competitor(group, network, kernel, device) for network, kernel in group.competitors()]
    for competitor in competitors:
        competitor.warm_up()
    runs = {str(i): competitor.run for i, competitor in enumerate(competitors)}
    # With this limit, no competitor takes longer than the budget.
    times = best_times(runs, rounds, slow=BUDGET_SECONDS / rounds)
    return [competitor.result(times[str(i)]) for i, competitor in enumerate(competitors)]


class _Competitor:
    """A network whose steps are measured until one of them fails."""

    def __init__(self, group: StepGroup, network: str, kernel: str, device: torch.device):
        self.group, self.kernel, self.device = group, kernel, device
        self.timing = Timing(network, group.mode, group.precision, kernel)
        self.step: Callable[[], None] | None = None

    def warm_up(self) -> None:
        """Make the network, take a step, which compiles what it needs, and another one if that did not take long."""
        before = _allocated(self.device)
        try:
            self.step = self._make_step()
        except Exception as error:  # whatever a driver may raise
            self._give_up(error)
        start = time.perf_counter()
        self.run()
        first = time.perf_counter() - start
        if first < BUDGET_SECONDS:
            self.run()
        if self.step is not None:
            self.timing = replace(self.timing, first_seconds=first, peak_mebibytes=_peak_above(before, self.device))

    def run(self) -> None:
        """One step, finished when this returns; nothing after a failure."""
        if self.step is None:
            return
        try:
            with kernel_in_force("auto" if self.kernel == "none" else self.kernel):
                self.step()
            _finish(self.device)
        except Exception as error:  # whatever a compiler or a driver may raise
            self._give_up(error)

    def result(self, seconds: float) -> Timing:
        return self.timing if self.step is None else replace(self.timing, seconds=seconds)

    def _make_step(self) -> Callable[[], None]:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        torch.manual_seed(0)
        x, labels = (tensor.to(self.device) for tensor in self.group.batch.make())
        model = create_model(self.timing.network).to(self.device)
        return MODES[self.group.mode](model, x, labels, PRECISIONS[self.group.precision])

    def _give_up(self, error: Exception) -> None:
        is_memory = isinstance(error, torch.OutOfMemoryError)
        self.timing = replace(self.timing, problem=OUT_OF_MEMORY if is_memory else describe_error(error))
        self.step = None  # lets go of the memory of the network


def _finish(device: torch.device) -> None:
    """Wait until everything asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _peak_above(before: int, device: torch.device) -> float | None:
    """The most memory in use since the last reset, in MiB beyond what was in use before."""
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20 if device.type == "cuda" else None
