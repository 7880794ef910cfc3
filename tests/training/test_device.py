"""Training on a GPU, as far as it can be tried without one: nothing waits for the device, layouts, half precision."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from runs import QUICK, assert_same_weights, digits, small_model, weights
from torch import nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException

import torchscn
from torchscn import data
from torchscn.data import Batches, Normalization
from torchscn.layers import attach_projection
from torchscn.training import ConfigError, DivergenceError, Interrupted, TrainConfig, evaluate, fit, loop, recent
from torchscn.training.checkpoint import Checkpoint, load_checkpoint, optimizer_tensors
from torchscn.training.device import autocast, batch_options, check_device, place_model, to_device
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


@pytest.mark.parametrize("n_steps", [1, 9])
def test_an_epoch_is_recorded_as_the_sum_of_its_steps(tmp_path, monkeypatch, n_steps):
    seen: list[tuple[float, int]] = []

    def step(*arguments):
        loss, n_wrong = train_step(*arguments)
        seen.append((float(loss), int(n_wrong)))
        return loss, n_wrong

    read_every(monkeypatch, n_steps)
    monkeypatch.setattr(loop, "train_step", step)
    run_quickly(tmp_path, QUICK.override({"epochs": 1}))
    (entry,) = curve(tmp_path)
    assert len(seen) == 22
    assert entry["train_loss"] == pytest.approx(sum(loss for loss, _ in seen) / 22)
    assert entry["train_error"] == pytest.approx(100 * sum(n_wrong for _, n_wrong in seen) / (22 * QUICK.batch_size))


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
        {"amp": True},
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


def test_an_evaluation_with_mirror_images_averages_the_scores():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    images = data.load("digits", "test")
    batches = Batches(images, 100, Normalization.fit(images.images), shuffle=False, drop_last=False)
    x = torch.cat([x for x, _ in batches.epoch(0)])
    with torch.no_grad():
        answers = (model(x) + model(x.flip(-1))).argmax(1)
    expected = 100 * float((answers != images.labels).double().mean())
    assert evaluate(model, batches, mirror=True).error == pytest.approx(expected)


def test_half_precision_needs_a_gpu(tmp_path):
    with pytest.raises(ConfigError, match=r"amp=true needs a CUDA device, but the run is on cpu.*amp=false"):
        run_quickly(tmp_path / "run", QUICK.override({"amp": "true"}))
    assert not (tmp_path / "run").exists()
    check_device(TrainConfig(amp=True), CUDA)
    check_device(TrainConfig(), CPU)


def output_types(model: nn.Module, **to_watch: type[nn.Module]) -> dict[str, torch.dtype]:
    """Filled by the next forward pass: the number type of the last output of every kind of module."""
    found: dict[str, torch.dtype] = {}
    for module in model.modules():
        for name, kind in to_watch.items():
            if isinstance(module, kind):
                module.register_forward_hook(lambda *call, name=name: found.update({name: call[-1].dtype}))
    return found


def test_half_precision_leaves_sparse_codes_loss_and_gradients_in_float32():
    """On fake tensors: products in bfloat16 can end the process on CPUs."""
    config = TrainConfig(amp=True)
    with FakeTensorMode():
        model = small_model()
        types = output_types(model, conv=nn.Conv2d, sparse=torchscn.SparseCoding2d, scores=nn.Linear)
        optimizer = make_optimizer(model, config)
        loss, _ = train_step(model, optimizer, torch.randn(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64), config)
        assert types == {"conv": torch.bfloat16, "sparse": torch.float32, "scores": torch.bfloat16}
        assert loss.dtype == torch.float32
        assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """What ``torch.autocast("cuda")`` switches on where there is a GPU."""
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_are_float32_under_autocast_on_cuda(dtype):
    with FakeTensorMode(), torch.no_grad(), cuda_autocast():
        image, filters = torch.empty(2, 3, 8, 8, device=CUDA, dtype=dtype), torch.empty(4, 3, 3, 3, device=CUDA)
        assert nn.functional.conv2d(image, filters).dtype == torch.bfloat16  # so autocast is at work
        rows, dictionary = torch.empty(5, 7, device=CUDA, dtype=dtype), torch.empty(3, 7, device=CUDA)
        assert torchscn.sparse_code(rows, dictionary, 0.1, 0.1).dtype == torch.float32
        gram = torch.empty(7, 7, device=CUDA, dtype=dtype)
        assert torchscn.nonneg_qp(rows, gram).dtype == torch.float32


def test_without_the_setting_there_is_no_autocast():
    with autocast(CPU, amp=False):
        assert not torch.is_autocast_enabled("cpu")
    with autocast(CPU, amp=True):
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16


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


def compile_with(monkeypatch: pytest.MonkeyPatch, backend: str) -> list[None]:
    """Let torch.compile use this backend; gives a list with an entry for every call of what was compiled."""
    from torch._dynamo import lookup_backend

    calls: list[None] = []

    def compile_and_count(graph, inputs):
        run = lookup_backend(backend)(graph, inputs)

        def counted(*arguments):
            calls.append(None)
            return run(*arguments)

        return counted

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compile_and_count))
    return calls


# "eager" traces the network without making code for it, which takes a minute.
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_network_leaves_the_files_of_a_plain_one(tmp_path, monkeypatch, backend):
    images = digits()[0].take(torch.arange(128))
    plain = TrainConfig(epochs=2, batch_size=64, lr=0.05, ema=0.9)
    compiled = plain.override({"compile": "true"})
    fit(small_model(), images, images, plain, tmp_path / "plain", quiet=True)
    calls = compile_with(monkeypatch, backend)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3)
        with pytest.raises(Interrupted):
            fit(small_model(), images, images, compiled, tmp_path / "compiled", quiet=True)
    result = fit(small_model(), images, images, compiled, tmp_path / "compiled", resume=True, quiet=True)
    assert len(calls) == 4  # steps and nothing else: evaluation uses the plain network
    assert type(result.model) is type(small_model())
    load_checkpoint(tmp_path / "compiled")[0].restore_model(small_model())
    torch.testing.assert_close(weights(tmp_path / "compiled"), weights(tmp_path / "plain"), atol=1e-4, rtol=1e-3)
