"""Training on a GPU, as far as it can be tried without one: nothing waits for the device, layouts, half precision."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from runs import QUICK, assert_same_weights, digits, small_model
from torch import nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException

from torchscn.layers import attach_projection
from torchscn.training import DivergenceError, Interrupted, TrainConfig, evaluate, fit, loop, recent
from torchscn.training.checkpoint import Checkpoint, load_checkpoint, optimizer_tensors
from torchscn.training.device import batch_options, place_model, to_device
from torchscn.training.distributed import Process
from torchscn.training.ema import AveragedWeights
from torchscn.training.loop import train_step
from torchscn.training.optimizer import make_optimizer, set_rates
from torchscn.training.recent import RecentSteps, steps_between_reads

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
SECONDS = ("seconds", "evaluation_seconds", "images_per_second")


def read_every(monkeypatch: pytest.MonkeyPatch, n_steps: int) -> None:
    monkeypatch.setattr(loop, "steps_between_reads", lambda device: n_steps)


def curve(folder) -> list[dict]:
    """The recorded numbers, without those that are different every time."""
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in entry.items() if name not in SECONDS} for entry in entries]


def assert_same_runs(one, other) -> None:
    assert_same_weights(one, other)
    assert curve(one) == curve(other)


def run_quickly(folder, config=QUICK, **options) -> None:
    fit(small_model(), *digits(), config, folder, quiet=True, **options)


@contextmanager
def counted_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many steps were read each time."""
    sizes: list[int] = []
    original = RecentSteps.read

    def read(self):
        sizes.append(len(self))
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(RecentSteps, "read", read)
        yield sizes


def test_results_are_read_rarely_on_a_gpu_and_always_on_the_cpu():
    assert steps_between_reads(CPU) == 1
    assert steps_between_reads(CUDA) == recent.STEPS_BETWEEN_READS_ON_CUDA > 1


def test_reading_rarely_changes_no_number(tmp_path, monkeypatch):
    with counted_reads(monkeypatch) as sizes:
        run_quickly(tmp_path / "always")
    assert set(sizes) == {1}
    read_every(monkeypatch, 9)
    with counted_reads(monkeypatch) as sizes:
        run_quickly(tmp_path / "rarely")
    assert sizes == [9, 9, 4] * 2
    assert_same_runs(tmp_path / "always", tmp_path / "rarely")


def interrupt_after(monkeypatch: pytest.MonkeyPatch, n_steps: int) -> None:
    """A signal that arrives during that step."""
    received: list[int] = []
    steps = iter(range(1, 10**6))

    @contextmanager
    def watch_signals():
        yield received

    def step(*arguments):
        if next(steps) == n_steps:
            received.append(2)
        return train_step(*arguments)

    monkeypatch.setattr(loop, "watch_signals", watch_signals)
    monkeypatch.setattr(loop, "train_step", step)


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 1e9])
def test_resuming_is_exact_when_results_are_read_rarely(tmp_path, monkeypatch, checkpoint_seconds):
    config = QUICK.override({"checkpoint_seconds": checkpoint_seconds})
    run_quickly(tmp_path / "whole", config)
    read_every(monkeypatch, 9)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 22 + 14)
        with pytest.raises(Interrupted):
            run_quickly(tmp_path / "broken", config)
    position = load_checkpoint(tmp_path / "broken")[0].position
    assert (position.epoch, position.batch, position.n_seen) == (1, 14, 14 * config.batch_size)
    run_quickly(tmp_path / "broken", config, resume=True)
    assert_same_runs(tmp_path / "whole", tmp_path / "broken")


def diverge_at(monkeypatch: pytest.MonkeyPatch, n_steps: int) -> None:
    steps = iter(range(1, 10**6))

    def step(*arguments):
        loss, n_wrong = train_step(*arguments)
        return (loss * math.nan if next(steps) >= n_steps else loss), n_wrong

    monkeypatch.setattr(loop, "train_step", step)


def test_divergence_is_found_when_results_are_read_and_names_its_batch(tmp_path, monkeypatch):
    read_every(monkeypatch, 9)
    diverge_at(monkeypatch, 22 + 3)
    with counted_reads(monkeypatch) as sizes, pytest.raises(DivergenceError, match=r"nan in epoch 2, batch 3\..*lower"):
        run_quickly(tmp_path)
    assert sizes == [9, 9, 4, 9]


def test_divergence_is_found_before_a_checkpoint_is_written(tmp_path, monkeypatch):
    read_every(monkeypatch, 9)
    diverge_at(monkeypatch, 4)
    with pytest.raises(DivergenceError, match="batch 4"):
        run_quickly(tmp_path, QUICK.override({"checkpoint_seconds": 0.0}))
    assert load_checkpoint(tmp_path)[0].position.batch == 3


def test_processes_ask_each_other_only_where_they_wait_anyway(monkeypatch):
    asked = []

    def sum_over_ranks(values):
        asked.append(float(values))
        return values

    monkeypatch.setattr(loop, "sum_over_ranks", sum_over_ranks)
    two = Process(0, 2)
    assert not loop._must_stop(True, two, others_asked=False)
    assert asked == []
    assert loop._must_stop(True, two, others_asked=True)
    assert not loop._must_stop(False, two, others_asked=True)
    assert asked == [1.0, 0.0]
    assert loop._must_stop(True, Process(), others_asked=False)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clip": 1.0, "label_smoothing": 0.1, "nesterov": True},
        {"optimizer": "muon", "clip": 1.0, "decay_lam1": False},
    ],
)
def test_a_step_does_not_wait_for_the_device(settings):
    """Fake tensors have no numbers: whatever would read one fails."""
    config = TrainConfig(**settings)
    with FakeTensorMode():
        model = small_model()
        optimizer = make_optimizer(model, config)
        attach_projection(optimizer, model)
        average = AveragedWeights(model, 0.9)
        steps = RecentSteps()
        for step in range(2):
            set_rates(optimizer, 0.5)
            x, labels = to_device(torch.randn(4, 1, 8, 8), CPU), to_device(torch.zeros(4, dtype=torch.int64), CPU)
            steps.add(*train_step(model, optimizer, x, labels, config), len(labels))
            average.update(model, step)
        with pytest.raises(DataDependentOutputException):
            steps.read()


def test_an_evaluation_waits_for_the_device_only_at_its_end():
    with FakeTensorMode():
        model = small_model()
        fakes = [(torch.randn(n, 1, 8, 8), torch.zeros(n, dtype=torch.int64)) for n in (4, 4, 2)]
        batches = SimpleNamespace(images=SimpleNamespace(classes=range(10)), epoch=lambda index: fakes)
        done: list[int] = []
        with pytest.raises(DataDependentOutputException):
            evaluate(model, batches, CPU, progress=done.append)
    assert done == [4, 8, 10]


class Moved(nn.Module):
    """Notes where it is moved instead of moving."""

    def to(self, *arguments, **options):
        self.moved = (arguments, options)
        return self


def test_a_network_on_a_gpu_has_the_layout_of_its_batches():
    assert place_model(Moved(), CUDA).moved == ((CUDA,), {"memory_format": torch.channels_last})
    assert place_model(Moved(), CPU).moved == ((CPU,), {})


def in_channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)


def layouts(tensors: dict[str, torch.Tensor]) -> list[bool]:
    return [t.is_contiguous(memory_format=torch.channels_last) for t in tensors.values() if t.dim() == 4]


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_a_checkpoint_in_another_layout_is_resumed_exactly(tmp_path, monkeypatch, optimizer):
    config = QUICK.override({"optimizer": optimizer})
    monkeypatch.setattr(loop, "place_model", lambda model, device: in_channels_last(model))
    run_quickly(tmp_path / "whole", config)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 22 + 14)
        with pytest.raises(Interrupted):
            run_quickly(tmp_path / "broken", config)
    run_quickly(tmp_path / "broken", config, resume=True)
    assert_same_runs(tmp_path / "whole", tmp_path / "broken")


def test_the_state_of_the_optimizer_gets_the_layout_of_its_parameter():
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    saved = {name: value.contiguous() for name, value in optimizer_tensors(optimizer).items()}
    Checkpoint({"optimizer": saved}).restore_optimizer(optimizer)
    restored = optimizer_tensors(optimizer)
    assert layouts(restored) == [True]
    assert all(torch.equal(restored[name], saved[name]) for name in saved)


def test_batches_for_a_gpu_are_made_in_the_background():
    assert batch_options(CUDA) == {"prefetch": True, "pinned_for": CUDA}
    assert batch_options(CPU) == {}


def test_batches_made_in_the_background_change_no_number(tmp_path, monkeypatch):
    run_quickly(tmp_path / "plain")
    monkeypatch.setattr(loop, "batch_options", lambda device: {"prefetch": True})
    with monkeypatch.context() as patch:
        interrupt_after(patch, 22 + 14)
        with pytest.raises(Interrupted):
            run_quickly(tmp_path / "ahead")
    run_quickly(tmp_path / "ahead", resume=True)
    assert_same_runs(tmp_path / "plain", tmp_path / "ahead")


def test_copies_do_not_stop_the_cpu():
    class Copied:
        def to(self, *arguments, **options):
            return arguments, options

    assert to_device(Copied(), CUDA) == ((CUDA,), {"non_blocking": True})
    x = torch.randn(2, 3)
    assert to_device(x, CPU) is x
