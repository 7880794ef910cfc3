"""``scn bench gpu`` from the command line, on a CPU that stands in for the GPU."""

import re

import pytest
import torch

from torchscn.bench import gpu
from torchscn.bench.gpu import load_results, run
from torchscn.bench.gpu.judge import Check
from torchscn.bench.gpu.steps import StepGroup
from torchscn.bench.problems import ImageBatch
from torchscn.cli import main


@pytest.fixture
def checks(monkeypatch):
    """Nothing is measured but one small step; checks are what the test puts here."""
    own = {}
    monkeypatch.setattr(gpu, "find_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(run, "list_checks", lambda: own)
    monkeypatch.setattr(run, "find_kernel_problem", lambda kernel, device: "it is too new")
    batch = ImageBatch(2, 8)
    monkeypatch.setattr(
        run, "list_groups", lambda kernels: [StepGroup("scn1", "training", "float32", tuple(kernels), batch)]
    )
    return own


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "gpu", *arguments])
    return ended.value.code


def test_without_a_device_one_sentence_says_so(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert call("--output", str(tmp_path)) == 1
    out, err = capsys.readouterr()
    assert re.fullmatch(r"scn: torch \S+ finds no CUDA device, which `scn bench gpu` is for; .*\n", err)
    assert out == ""
    assert not list(tmp_path.iterdir())


def test_one_file_holds_everything(checks, capsys, tmp_path):
    checks["good"] = lambda kernel, device: Check("good", kernel, 0.1, True, True)
    assert call("--output", str(tmp_path / "new"), "--rounds", "1") == 0
    (result,) = load_results(tmp_path / "new")
    assert result["device"]["name"] == "cpu"
    assert result["triton_problem"] == "it is too new"
    assert result["rounds"] == 1
    assert [check["kernel"] for check in result["checks"]] == ["torch"]
    assert [step["kernel"] for step in result["steps"]] == ["none", "torch"]
    out = capsys.readouterr().out
    assert "plain torch stands in: it is too new" in out
    assert "1 of 1 checks passed" in out
    assert re.search(r"saved as \S+gpu-cpu-\S+\.json; please send this file to the authors", out.replace("\n", " "))


def test_a_failure_does_not_stop_the_rest_but_is_the_exit_code(checks, capsys, tmp_path, monkeypatch):
    def crash(kernel, device):
        raise RuntimeError("it broke")

    checks["bad"] = crash
    checks["good"] = lambda kernel, device: Check("good", kernel, 0.1, True, True)
    monkeypatch.chdir(tmp_path)
    assert call("--rounds", "1") == 1
    (result,) = load_results(tmp_path)
    assert [check["passed"] for check in result["checks"]] == [False, True]
    assert len(result["steps"]) == 2
    assert "FAILED: bad: RuntimeError: it broke" in capsys.readouterr().out


def test_the_triton_kernel_is_checked_where_it_can_be_used(checks, monkeypatch, tmp_path):
    monkeypatch.setattr(run, "find_kernel_problem", lambda kernel, device: None)
    monkeypatch.setattr(run, "list_groups", lambda kernels: seen.append(tuple(kernels)) or [])
    seen = []
    checks["good"] = lambda kernel, device: Check(f"good by {kernel}", kernel, 0.1, True, True)
    assert call("--output", str(tmp_path)) == 0
    (result,) = load_results(tmp_path)
    assert [check["name"] for check in result["checks"]] == ["good by triton"]
    assert seen == [("triton", "torch")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "--rounds must be a whole number, at least 1; got 0."),
        (["--output", "here", "--draw", "there"], "--draw is not for gpu"),
    ],
)
def test_mistakes_end_in_one_sentence(capsys, arguments, message):
    assert call(*arguments) == 1
    assert message in capsys.readouterr().err


def test_all_does_not_include_the_gpu():
    from torchscn.bench import SUITES

    assert "gpu" not in SUITES
