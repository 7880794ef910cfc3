import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchscn
from torchscn import environment
from torchscn.environment import describe_environment


def test_run_folders_and_records_find_their_keys():
    described = describe_environment()
    assert list(described) == [
        "torchscn",
        "commit",
        "torch",
        "python",
        "machine",
        "processor",
        "threads",
        "world_size",
        "kernel",
        "gpu_kernel",
        "command",
    ]
    assert described["torchscn"] == torchscn.__version__
    assert described["torch"] == torch.__version__
    assert described["threads"] == torch.get_num_threads()
    assert described["processor"]


def test_the_number_of_processes_is_that_of_torchrun(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert describe_environment()["world_size"] == 4


def test_the_kernel_is_the_one_in_use(monkeypatch):
    monkeypatch.setenv("TORCHSCN_KERNEL", "torch")
    assert describe_environment()["kernel"] == "torch"
    monkeypatch.setenv("TORCHSCN_KERNEL", "nonsense")
    with pytest.raises(ValueError, match="TORCHSCN_KERNEL='nonsense' is not a kernel"):
        describe_environment()


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["/somewhere/bin/scn", "train", "digits"], "scn train digits"),
        (["/somewhere/torchscn/__main__.py", "info"], "scn info"),
        (["/home/someone/fit.py", "--epochs", "3"], "python fit.py --epochs 3"),
        (["scn", "train", "digits", "--run-dir", "my runs/x"], "scn train digits --run-dir 'my runs/x'"),
        (["scn"], "scn"),
    ],
)
def test_the_command_can_be_typed_again(monkeypatch, arguments, command):
    monkeypatch.setattr(sys, "argv", arguments)
    assert describe_environment()["command"] == command


def test_the_command_names_a_package_that_was_run(tmp_path):
    package = tmp_path / "tools" / "study"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(
        "from torchscn.environment import describe_environment\nprint(describe_environment()['command'])\n"
    )
    for call, command in ((["-m", "tools.study"], "python -m tools.study"), ([str(package)], "python study")):
        done = subprocess.run([sys.executable, *call, "run"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == f"{command} run"


def make_checkout(folder: Path, tracked: bool) -> Path:
    """A checkout with the package in it, which git tracks or not; returns the package's module."""
    package = folder / "torchscn"
    package.mkdir()
    for name in ("__init__.py", "environment.py"):
        (package / name).write_text("")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    if tracked:
        subprocess.run(["git", "-C", str(folder), "add", "."], check=True)
    commit = ["commit", "-q", "--allow-empty", "-m", "first"]
    subprocess.run(["git", "-C", str(folder), *identity, *commit], check=True)
    return package / "environment.py"


@pytest.mark.parametrize("tracked", [True, False])
def test_the_commit_is_that_of_our_own_checkout(tmp_path, monkeypatch, tracked):
    monkeypatch.setattr(environment, "__file__", str(make_checkout(tmp_path, tracked)))
    assert (describe_environment()["commit"] is not None) == tracked


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert describe_environment()["commit"] is None


def test_importing_it_does_not_import_torch():
    code = "import sys, torchscn.environment; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
