"""The script that compares two installed versions, here with the same one twice."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "versions.py"


def compare(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)


def test_a_version_against_itself(tmp_path):
    options = ["--rounds", "1", "--threads", "1", "--only", "small-forward", "first-call"]
    result = compare(sys.executable, sys.executable, *options, "--json", str(tmp_path / "times.json"))
    assert result.returncode == 0, result.stderr
    kept = json.loads((tmp_path / "times.json").read_text())
    assert [row["name"] for row in kept["rows"]] == ["first-call", "small-forward"]
    row = kept["rows"][1]
    best = {label: min(times["small-forward"]) for label, times in kept["comparison"].items()}
    again = {label: min(times["small-forward"]) for label, times in kept["noise"].items()}
    assert row["ratio"] == pytest.approx(best["new"] / best["old"])
    assert row["noise"] == pytest.approx(again["old again"] / again["old"])
    assert 0 < row["new"] < 1
    assert "sparse_code, 64 x 144, 16 atoms" in result.stdout


@pytest.fixture
def versions() -> ModuleType:
    spec = importlib.util.spec_from_file_location("versions", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_versions_take_turns_and_swap_their_order(versions, monkeypatch):
    asked = []

    def measure_in(python, names, threads):
        asked.append(python.name)
        return {name: float(len(asked)) for name in names}

    monkeypatch.setattr(versions, "measure_in", measure_in)
    found = versions.compare("title", {"old": Path("a"), "new": Path("b")}, ["import"], rounds=3, threads=1)
    assert asked == ["a", "b", "b", "a", "a", "b"]
    assert found == {"old": {"import": [1, 4, 5]}, "new": {"import": [2, 3, 6]}}


@pytest.mark.slow
def test_whole_networks_can_be_measured(versions):
    names = ["scn1-training", "scn1-inference"]
    times = versions.measure_in(Path(sys.executable), names, threads=1)
    assert list(times) == names
    assert 0 < times["scn1-inference"] < times["scn1-training"]


@pytest.fixture
def bare_python(tmp_path) -> str:
    """An interpreter that has no packages."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")]
    subprocess.run(command, check=True)
    return str(tmp_path / "bare" / "bin" / "python")


def test_an_interpreter_without_torchscn_is_refused(bare_python):
    result = compare(sys.executable, bare_python)
    assert result.returncode == 1
    assert result.stderr == f"versions.py: {bare_python} cannot be measured: it has no torchscn installed\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere/python", sys.executable], "versions.py: /nowhere/python cannot be run: No such file or directory."),
        ([sys.executable, sys.executable, "--only", "small", "large"], "there is no measurement 'large'"),
        ([sys.executable], "name two Python interpreters"),
        ([sys.executable, sys.executable, "--rounds", "0"], "--rounds and --threads must be at least 1"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    result = compare(*arguments)
    assert result.returncode != 0
    assert message in result.stderr
    assert "Traceback" not in result.stderr
