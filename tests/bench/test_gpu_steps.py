import pytest
import torch
from torch import nn

from torchscn.bench.gpu import steps
from torchscn.bench.gpu.steps import StepGroup, list_groups, measure_group
from torchscn.bench.problems import ImageBatch
from torchscn.bench.steps import inference_step, training_step

CPU = torch.device("cpu")
GROUP = StepGroup("scn1", "training", "float32", ("torch", "auto"), ImageBatch(2, 8))


@pytest.fixture
def models(monkeypatch):
    """Networks that take no time, and may fail; they count how often they were called."""
    made = {}

    class Tiny(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.linear = nn.Linear(3, 10)
            self.calls, self.error = 0, None
            made.setdefault(name, []).append(self)

        def forward(self, x):
            self.calls += 1
            if self.error is not None and self.calls >= 3:
                raise self.error
            return self.linear(x.mean((2, 3)))

    monkeypatch.setattr(steps, "create_model", Tiny)
    return made


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_networks_are_measured_beside_the_twin(mode):
    group = StepGroup("scn1", mode, "float32", ("torch",), ImageBatch(2, 8))
    twin, ours = measure_group(group, 1, CPU)
    assert (twin.network, twin.kernel, ours.network, ours.kernel) == ("cnn1", "none", "scn1", "torch")
    for timing in (twin, ours):
        assert timing.problem is None
        assert 0 < timing.seconds < 60
        assert 0 < timing.first_seconds < 60
        assert timing.as_row().keys() == {"network", "mode", "precision", "kernel", "seconds", "first_seconds"}


def test_everything_is_on_the_list():
    groups = list_groups(("triton", "torch"))
    assert len(groups) == 3 * 2 * 2
    assert {(group.network, group.twin) for group in groups} == {("scn1", "cnn1"), ("scn2", "cnn2"), ("scn4", "cnn4")}
    assert (groups[0].batch.batch, groups[0].batch.size) == (128, 32)
    assert groups[0].competitors() == [("cnn1", "none"), ("scn1", "triton"), ("scn1", "torch")]


def test_rounds_are_counted_after_the_warm_up(models):
    measure_group(GROUP, 5, CPU)
    assert [model.calls for name in ("cnn1", "scn1") for model in models[name]] == [7, 7, 7]


def test_what_is_slow_runs_only_once(models, monkeypatch):
    monkeypatch.setattr(steps, "BUDGET_SECONDS", 1e-9)
    assert all(timing.seconds > 0 for timing in measure_group(GROUP, 5, CPU))
    assert [model.calls for name in ("cnn1", "scn1") for model in models[name]] == [2, 2, 2]


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "out of memory"),
        (RuntimeError("no kernel image"), "RuntimeError: no kernel image"),
    ],
)
@pytest.mark.parametrize("when", ["made", "running"])
def test_one_that_fails_does_not_stop_the_others(models, monkeypatch, error, problem, when):
    make, made = steps.create_model, []

    def create(name):
        made.append(name)
        if len(made) == 2 and when == "made":
            raise error
        model = make(name)
        model.error = error if len(made) == 2 else None
        return model

    monkeypatch.setattr(steps, "create_model", create)
    twin, failed, other = measure_group(GROUP, 4, CPU)
    assert (failed.problem, failed.seconds) == (problem, None)
    assert twin.seconds > 0 < other.seconds
    assert twin.problem is None is other.problem


@pytest.mark.parametrize("step", [training_step, inference_step])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_autocast_is_for_the_forward_pass(step, dtype):
    seen = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = nn.Parameter(torch.zeros(2, 10))
            self.scores.register_hook(lambda grad: seen.append(torch.is_autocast_enabled("cpu")))

        def forward(self, x):
            seen.append(torch.is_autocast_enabled("cpu"))
            return self.scores

    step(Watched(), torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), dtype)()
    assert seen == [dtype is not None, False][: 2 if step is training_step else 1]
