"""Run folders: nothing is overwritten, and what a run left behind can be used."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runs import QUICK, digits, small_model, weights

from torchscn import data
from torchscn.training import (
    CheckpointError,
    ConfigError,
    fit,
    load_trained,
    run_folder,
    train,
)
from torchscn.training.checkpoint import CURRENT, PREVIOUS
from torchscn.training.run_folder import RunFolder
from torchscn.weights import read_weights


def test_a_run_is_not_overwritten(tmp_path):
    fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)
    with pytest.raises(ConfigError, match="--resume"):
        fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)
    with pytest.raises(CheckpointError, match="lr differ"):
        fit(small_model(), *digits(), QUICK.override({"lr": 0.3}), tmp_path, resume=True, quiet=True)
    # Resuming a finished run changes nothing.
    before = weights(tmp_path)
    fit(small_model(), *digits(), QUICK, tmp_path, resume=True, quiet=True)
    assert all(torch.equal(value, before[name]) for name, value in weights(tmp_path).items())


def test_a_finished_run_without_checkpoints_is_not_overwritten(tmp_path):
    fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)
    for name in (CURRENT, PREVIOUS):
        (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match="already holds a finished run"):
        fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)


def test_nothing_to_resume(tmp_path):
    with pytest.raises(ConfigError, match="no checkpoint to resume from"):
        fit(small_model(), *digits(), QUICK, tmp_path / "typo", resume=True, quiet=True)
    assert not (tmp_path / "typo").exists()


def test_environments_of_a_resumed_run_are_kept(tmp_path):
    fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)
    path = tmp_path / "environment.json"
    assert "resumed" not in json.loads(path.read_text())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"threads": 64, "command": "scn train first"}))
    fit(small_model(), *digits(), QUICK, tmp_path, resume=True, quiet=True)
    assert "resumed" not in json.loads(path.read_text()), "the run was finished"
    (tmp_path / CURRENT).unlink()  # the one before is of the last epoch's beginning
    fit(small_model(), *digits(), QUICK, tmp_path, resume=True, quiet=True)
    environment = json.loads(path.read_text())
    assert (environment["threads"], environment["command"]) == (64, "scn train first")
    assert [entry["after_epochs"] for entry in environment["resumed"]] == [1]
    assert environment["resumed"][0]["threads"] == torch.get_num_threads()


def test_leftovers_of_a_failed_start_do_not_block_the_folder(tmp_path):
    (tmp_path / "checkpoint.next.safetensors").touch()
    (tmp_path / "config.json").write_text(QUICK.override({"lr": 0.3}).to_json())
    assert len(fit(small_model(), *digits(), QUICK, tmp_path, quiet=True).metrics) == QUICK.epochs


def test_another_solver_drops_the_cap_of_the_runs_own(tmp_path):
    train(QUICK.override({"solver": "fista", "tol": 0.0, "max_iter": 3, "grad": "unrolled"}), tmp_path, quiet=True)
    layer = load_trained(tmp_path, {"solver": "coordinate", "tol": 1e-5}).model.sparse_layers()[0][1]
    assert (layer.solver, layer.tol, layer.max_iter, layer.grad) == ("coordinate", 1e-5, None, "implicit")
    same = load_trained(tmp_path).model.sparse_layers()[0][1]
    assert (same.solver, same.tol, same.max_iter, same.grad) == ("fista", 0.0, 3, "unrolled")


def test_trained_model_loads_ready_to_use(tmp_path):
    config = QUICK.override({"model": "cnn1"})
    result = train(config, tmp_path, quiet=True)
    model = load_trained(tmp_path).model
    assert model.classes == tuple("0123456789")
    assert model.image_size == (8, 8)
    x = model.preprocess(data.load("digits", "test").images[:20])
    assert torch.equal(model(x), result.model.eval()(x))


@pytest.mark.parametrize("shortcuts", ["pooled", "projected"])
def test_a_network_with_shortcuts_loads_as_it_was_trained(tmp_path, shortcuts):
    result = train(QUICK.override({"shortcuts": shortcuts}), tmp_path, quiet=True)
    assert read_weights(tmp_path / "model.safetensors").about["network"]["shortcuts"] == shortcuts
    model = load_trained(tmp_path).model
    x = model.preprocess(data.load("digits", "test").images[:20])
    assert len(model.shortcuts) == len(result.model.shortcuts) > 0
    assert torch.equal(model(x), result.model.eval()(x))
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace(shortcuts, "none"))
    with pytest.raises(ConfigError, match="shortcuts differ"):
        load_trained(tmp_path)


def test_a_trained_network_knows_what_it_was_trained_on(tmp_path):
    model = train(QUICK, tmp_path, quiet=True).model
    images = data.load("digits", "test").images[:4]
    assert model.classes == tuple("0123456789")
    assert model.image_size == (8, 8)
    loaded = load_trained(tmp_path).model
    assert torch.equal(model.preprocess(images), loaded.preprocess(images))


def test_a_network_of_the_package_is_loaded_by_its_name():
    trained = load_trained("scn4-mnist", {"tol": 1e-4})
    assert trained.model.sparse_layers()[0][1].tol == 1e-4
    assert (trained.config.data, trained.config.model) == ("mnist", "scn4")
    with pytest.raises(ValueError, match="neither a run folder nor a network of the package"):
        load_trained("scn4-mnits")


HOLD_THE_LOCK = """
import sys, time
from pathlib import Path
from torchscn.training.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("locked", flush=True)
    time.sleep(60)
"""


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_one_training_at_a_time(tmp_path):
    fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)
    command = [sys.executable, "-c", HOLD_THE_LOCK, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "locked\n"
            before = contents(tmp_path)
            with pytest.raises(ConfigError, match="another training is running in"):
                fit(small_model(), *digits(), QUICK, tmp_path, resume=True, quiet=True)
            assert contents(tmp_path) == before
            assert read_weights(tmp_path / "model.safetensors").num_classes == 10, "using the network needs no lock"
        finally:
            other.kill()
    fit(small_model(), *digits(), QUICK, tmp_path, resume=True, quiet=True)  # the system released it


def test_the_folder_is_free_after_a_failure(tmp_path):
    for _ in range(2):
        with pytest.raises(ValueError, match="10 classes"):
            fit(small_model(num_classes=7), *digits(), QUICK, tmp_path, quiet=True)
    fit(small_model(), *digits(), QUICK, tmp_path, quiet=True)


def test_systems_without_locks_do_without(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "fcntl", None)
    run = RunFolder(tmp_path)
    with run.lock(), run.lock():
        assert list(tmp_path.iterdir()) == []
