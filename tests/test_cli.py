"""The command line: what it prints, how it fails, and that it does not keep people waiting."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import PIL.Image
import pytest

from torchscn import data
from torchscn.cli import main, train
from torchscn.training import Interrupted, TrainConfig
from torchscn.training import train as train_network
from torchscn.training.config import describe_settings, list_recipes
from torchscn.training.run_folder import RunFolder

QUICK = (["--help"], ["--version"], ["recipes"], ["train", "--help"], ["recipes", "digits"])


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits-scn1"
    train_network(TrainConfig(epochs=1, batch_size=64, limit=256, options={"stem": 4}), folder, quiet=True)
    return folder


def run_scn(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchscn", *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", QUICK)
def test_what_needs_no_torch_does_not_import_it(arguments):
    code = (
        "import sys\n"
        "from torchscn.cli import main\n"
        "try:\n"
        f"    main({arguments})\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize("arguments", QUICK[:3])
def test_what_needs_no_torch_is_there_at_once(arguments):
    """Measured in CPU time, which other work on the machine hardly changes."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run_scn(*arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.5


def test_help_lists_the_commands(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    for command in ("train", "recipes", "eval", "predict", "data", "bench", "info"):
        assert f"│ {command} " in out
    assert "results" not in out


def test_recipes_shows_every_recipe_and_setting(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = call(capsys, "recipes")
    assert code == 0
    rows = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line.split()}
    assert list_recipes().keys() <= rows.keys()
    for setting in describe_settings():
        assert setting.name in rows
        assert setting.group in rows
        assert " ".join(setting.meaning.split()) in " ".join(out.split())
    assert rows["schedule"].startswith("schedule cosine")
    assert rows["schedule"].endswith("[cosine | onecycle | steps]")


def test_one_recipe_in_full(capsys):
    code, out, _ = call(capsys, "recipes", "digits")
    assert code == 0
    assert '"data": "digits"' in out


def test_training_from_the_command_line(tmp_path, capsys):
    settings = ["--epochs", "1", "--limit", "64", "--batch-size", "32", "--stem", "4"]
    code, out, _ = call(capsys, "train", "digits", "--run-dir", str(tmp_path / "run"), *settings)
    assert code == 0
    assert "final test error" in out
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_resuming_needs_the_run_folder(capsys):
    code, _, err = call(capsys, "train", "digits", "--resume")
    assert code == 1
    assert err.startswith("scn: name the run folder: --run-dir DIR")


def test_evaluation_and_prediction(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    picture = Path("one[small].png")
    PIL.Image.fromarray(data.load("digits", "test").images[0, 0].numpy()).save(picture)
    code, out, _ = call(capsys, "eval", str(run), "--confusion")
    assert code == 0
    assert f"test error {RunFolder(run).read_metrics()[-1]['test_error']:.2f}%" in out
    assert "true \\ answer" in out
    assert "blocks.13.1" in out
    code, out, _ = call(capsys, "predict", str(run), str(picture), "--top", "2")
    assert code == 0
    assert "one[small].png" in out
    assert out.count("%") == 2


def test_evaluation_with_another_solver(run, capsys):
    code, out, _ = call(capsys, "eval", str(run), "--solver", "fista", "--tol", "0", "--max-iter", "5")
    assert code == 0
    (first_layer,) = (line.split() for line in out.splitlines() if line.split()[:1] == ["blocks.0.1"])
    assert first_layer[1] == "5.0"


def test_networks_of_the_package_are_loaded_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    PIL.Image.new("RGB", (32, 32), "grey").save("grey.png")
    code, out, _ = call(capsys, "predict", "scn1-cifar10", "grey.png", "--top", "1")
    assert code == 0
    assert "grey.png" in out


def test_data_shows_what_is_missing_and_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = call(capsys, "data", "--data-dir", str(tmp_path))
    assert code == 0
    assert "4 of 4 files are missing. Fetch it with: scn data get mnist" in out
    assert "comes with scikit-learn" in out


def test_info_describes_the_machine():
    out = run_scn("info", TORCHSCN_KERNEL="torch").stdout
    rows = {line.split("  ")[0].strip(): line for line in out.splitlines() if line.strip()}
    described = {"torchscn", "commit", "torch", "python", "machine", "processor", "threads", "kernel"}
    offered = {"kernels available", "solvers", "models", "trained networks", "cuda device"}
    assert described | offered <= rows.keys()
    assert rows["kernel"].split() == ["kernel", "torch"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "network"], "Did you mean 'networks'?"),
        (["bench", "solvers", "--draw", "somewhere"], "--draw needs the folder of the results: --output DIR."),
        (["train", "digit"], "Did you mean 'digits'?"),
        (["train", "digits", "--epoch", "3"], "there is no setting 'epoch'. Did you mean 'epochs'?"),
        (["recipes", "nonsense"], "no recipe 'nonsense'."),
        (["eval", "nowhere"], "'nowhere'"),
        (["predict", "scn1-cifar10"], "name at least one image file."),
        (["data", "get", "minst"], "Did you mean 'mnist'?"),
    ],
)
def test_mistakes_end_in_one_sentence(capsys, arguments, message):
    code, _, err = call(capsys, *arguments)
    assert code == 1
    assert err.startswith("scn: ")
    assert message in err
    assert "Traceback" not in err


def test_a_mistake_in_the_environment_ends_in_one_sentence():
    result = run_scn("info", TORCHSCN_KERNEL="nonsense")
    assert result.returncode == 1
    assert result.stderr.startswith("scn: TORCHSCN_KERNEL='nonsense' is not a kernel")


@pytest.mark.parametrize("error", [ValueError, TypeError, RuntimeError, OSError])
def test_errors_of_all_kinds_are_told(monkeypatch, capsys, error):
    def fail(name):
        raise error("what was wrong, and what to do.")

    monkeypatch.setattr(train, "load_recipe", fail)
    assert call(capsys, "recipes", "digits") == (1, "", "scn: what was wrong, and what to do.\n")


def test_an_interrupted_run_says_how_to_resume_it(monkeypatch, capsys):
    def stop(*arguments, **options):
        raise Interrupted("stopped in epoch 1; resume with --resume")

    monkeypatch.setattr("torchscn.training.load_trained", stop)
    assert call(capsys, "eval", "anything") == (130, "", "\nscn: stopped in epoch 1; resume with --resume\n")
