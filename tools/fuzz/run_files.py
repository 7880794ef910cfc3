"""Files of a run and of the package: checkpoints, weights, settings, records, recipes."""

import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tools.fuzz.judge import Refused, Wrong, check_command, check_sentence, read_or_refuse
from tools.fuzz.kind import Check, Kind
from tools.fuzz.mutations import ODD_VALUES, Mutation, mutate_header, mutate_json, mutate_lines, mutate_text
from tools.results import load_records, record_run, save_record
from tools.results.__main__ import main as results_main
from tools.results.report import make_tables
from torchscn import weights
from torchscn.bench.report import load_results
from torchscn.cli import main
from torchscn.training import ConfigError, TrainConfig, load_trained, train
from torchscn.training.checkpoint import CURRENT, PREVIOUS, Checkpoint, CheckpointError, load_checkpoint
from torchscn.training.config import load_recipe
from torchscn.training.run_folder import RunFolder
from torchscn.weights import TrainedWeights, read_groups, write_groups

__all__ = ["run_kinds"]

CONFIG = TrainConfig(epochs=2, batch_size=32, limit=64, stem=1, width=1, tol=1e-3, lam2=2e-3, shift=1, ema=0.9)
COMMAND_EVERY, RESUME_EVERY = 25, 50
Groups = dict[str, dict[str, Tensor]]


def run_kinds(folder: Path) -> list[Kind]:
    """Every kind of file that a run, its record or the package consists of, with good ones in ``folder``."""
    folder.mkdir(parents=True)
    good = folder / "good"
    train(CONFIG, good, quiet=True)
    return [
        _checkpoint_kind(good, folder / "newest"),
        _previous_kind(good, folder / "previous"),
        _poisoned_checkpoint_kind(good, folder / "poisoned-checkpoint"),
        _model_kind(good, folder / "model"),
        _poisoned_model_kind(good, folder / "poisoned-model"),
        _config_kind(good, folder / "config"),
        _metrics_kind(good, folder / "metrics"),
        _environment_kind(good, folder / "environment"),
        _record_kind(good, folder / "records"),
        _benchmark_kind(folder / "benchmarks"),
        _recipe_kind(folder),
        _pretrained_kind(folder / "pretrained"),
        _hashes_kind(folder / "hashes"),
    ]


def _flat(groups: Groups) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Tensors in a form that can be compared to the last bit."""
    return {
        f"{group}/{name}": (str(value.dtype), tuple(value.shape), value.reshape(-1).view(torch.uint8).numpy().tobytes())
        for group, tensors in groups.items()
        for name, value in tensors.items()
    }


def _said(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return _flat(checkpoint.tensors), checkpoint.numbers


def _trained(folder: Path) -> tuple[Any, ...]:
    """Everything that the answers of a trained network depend on."""
    trained = load_trained(folder)
    model = trained.model
    assert model.normalization is not None
    state: Groups = {"model": dict(model.state_dict()), "normalization": model.normalization.state()}
    layers = [(name, layer.options, layer.stride) for name, layer in model.sparse_layers()]
    return _flat(state), layers, model.classes, model.image_size


def _predict(run: Path, path: Path, write: Callable[[bytes], Any], content: bytes) -> None:
    """``scn predict`` answers, or says what is wrong with ``path``."""
    write(content)
    image = run.parent / "image.png"
    if not image.exists():
        from PIL import Image

        Image.new("L", (8, 8), 100).save(image)
    check_command(main, ["predict", str(run), str(image)], path)


def _resume(run: Path, path: Path, expected: bytes, content: bytes) -> None:
    """``scn train --resume`` in a copy of the run arrives at the same network, or says what is wrong with the copy."""
    copy = run.parent / "resumed"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    (copy / path.name).write_bytes(content)
    (copy / "model.safetensors").unlink(missing_ok=True)
    recipe = run.parent / "resumed.toml"
    recipe.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in CONFIG.changed_settings().items()))
    resumed = check_command(main, ["train", str(recipe), "--run-dir", str(copy), "--resume"], copy)
    if resumed and (copy / "model.safetensors").read_bytes() != expected:
        raise Wrong("the resumed run arrived at another network")


def _copy_of(good: Path, folder: Path, *, finished: bool) -> Path:
    shutil.copytree(good, folder)
    if not finished:
        (folder / "model.safetensors").unlink()
    return folder


def _checkpoint_kind(good: Path, folder: Path) -> Kind:
    path = _copy_of(good, folder, finished=False) / CURRENT
    newest = _said(load_checkpoint(folder)[0])
    path.unlink()
    previous = _said(load_checkpoint(folder)[0])
    expected = (good / "model.safetensors").read_bytes()
    checks = (
        Check(partial(_check_checkpoint, path, newest, previous)),
        Check(partial(_predict, folder, path, path.write_bytes), COMMAND_EVERY),
        Check(partial(_resume, folder, path, expected), RESUME_EVERY),
    )
    return Kind("newest checkpoint", (good / CURRENT).read_bytes(), mutate_header, checks)


def _check_checkpoint(path: Path, newest: tuple[Any, ...], previous: tuple[Any, ...], content: bytes) -> None:
    path.write_bytes(content)
    found, problem = load_checkpoint(path.parent)
    if problem is not None:
        check_sentence(problem, path)
    if _said(found) != (newest if problem is None else previous):
        raise Wrong("another checkpoint")


def _previous_kind(good: Path, folder: Path) -> Kind:
    path = _copy_of(good, folder, finished=False) / PREVIOUS
    (folder / CURRENT).unlink()
    expected = _said(load_checkpoint(folder)[0])
    checks = (
        Check(partial(_check_previous, path, expected)),
        Check(partial(_resume, folder, path, (good / "model.safetensors").read_bytes()), RESUME_EVERY),
    )
    return Kind("previous checkpoint, the newest lost", path.read_bytes(), mutate_header, checks)


def _check_previous(path: Path, expected: tuple[Any, ...], content: bytes) -> None:
    path.write_bytes(content)
    found = read_or_refuse(lambda: load_checkpoint(path.parent)[0], path, CheckpointError)
    if not isinstance(found, Refused) and _said(found) != expected:
        raise Wrong("another checkpoint")


def _poison(path: Path, groups: Groups, texts: dict[str, str], dice: random.Random) -> Mutation:
    """Content that does not belong into the file, with a checksum that is right."""
    group = dice.choice(list(groups))
    name = dice.choice(list(groups[group]))
    value, text = groups[group][name], dice.choice(list(texts))
    changed = {key: dict(tensors) for key, tensors in groups.items()}
    odd = value.clone().double().reshape(-1)
    odd[dice.randrange(len(odd))] = dice.choice((float("nan"), float("inf"), float("-inf")))
    how = dice.choice(("not finite", "of whole numbers", "of another shape", "lost", "under another name", "text"))
    if how == "not finite" and value.is_floating_point():
        changed[group][name] = odd.reshape(value.shape).to(value.dtype)
    elif how == "of whole numbers" and value.is_floating_point():
        changed[group][name] = value.to(torch.int64)
    elif how == "of another shape":
        shapes = ((0,), (7, 5), (*value.shape, 1), (1, *value.shape), () if value.shape else (1, 1))
        changed[group][name] = value.new_ones(dice.choice(shapes))
    elif how == "under another name":
        changed[group][dice.choice(("unknown", "", "99.x", "-1.y", "../x"))] = changed[group].pop(name)
    elif how == "lost" and group != "optimizer":  # which need not know every parameter
        del changed[group][name]
    else:
        how, damaged = mutate_json(texts[text].encode(), dice)
        write_groups(path, groups, texts | {text: damaged.decode(errors="replace")})
        return f"{text}: {how}", path.read_bytes()
    write_groups(path, changed, texts)
    return f"{group}/{name} {how}", path.read_bytes()


def _poisoned_checkpoint_kind(good: Path, folder: Path) -> Kind:
    path = _copy_of(good, folder, finished=False) / PREVIOUS
    (folder / CURRENT).unlink()
    groups, texts = read_groups(path)
    content, expected = path.read_bytes(), (good / "model.safetensors").read_bytes()
    checks = (
        Check(partial(_check_no_other_state, path, folder, _flat(groups))),
        Check(partial(_resume, folder, path, expected), 10),
    )
    return Kind(
        "checkpoint with wrong content and a right checksum",
        content,
        lambda _, dice: _poison(folder / "scratch", groups, texts, dice),
        checks,
    )


def _check_no_other_state(path: Path, run: Path, expected: dict[str, Any], content: bytes) -> None:
    """The weights are the good ones, or refused; texts that are well formed may say anything, the checksum is right."""
    path.write_bytes(content)
    found = read_or_refuse(lambda: _trained(run), path, CheckpointError, ConfigError)
    if isinstance(found, Refused):
        return
    names = {name.replace("ema/", "model/"): value for name, value in expected.items() if not name.startswith("model/")}
    if not found[0].items() <= names.items():
        raise Wrong("other weights")


def _model_kind(good: Path, folder: Path) -> Kind:
    path = _copy_of(good, folder, finished=True) / "model.safetensors"
    checks = (
        Check(partial(_check_trained, path, folder, _trained(folder))),
        Check(partial(_predict, folder, path, path.write_bytes), COMMAND_EVERY),
    )
    return Kind("trained network", path.read_bytes(), mutate_header, checks)


def _check_trained(path: Path, run: Path, expected: tuple[Any, ...], content: bytes) -> None:
    path.write_bytes(content)
    found = read_or_refuse(lambda: _trained(run), path, CheckpointError, ConfigError)
    if not isinstance(found, Refused) and found != expected:
        raise Wrong("another network")


def _poisoned_model_kind(good: Path, folder: Path) -> Kind:
    path = _copy_of(good, folder, finished=True) / "model.safetensors"
    groups, texts = read_groups(path)
    expected = _flat(groups) | {name.replace("model/", "ema/"): value for name, value in _flat(groups).items()}
    checks = (
        Check(partial(_check_no_other_state, path, folder, expected)),
        Check(partial(_predict, folder, path, path.write_bytes), COMMAND_EVERY),
    )
    return Kind(
        "trained network with wrong content and a right checksum",
        path.read_bytes(),
        lambda _, dice: _poison(folder / "scratch", groups, texts, dice),
        checks,
    )


def _config_kind(good: Path, folder: Path) -> Kind:
    path = _copy_of(good, folder, finished=True) / "config.json"
    checks = (
        Check(partial(_check_trained, path, folder, _trained(folder))),
        Check(partial(_predict, folder, path, path.write_bytes), COMMAND_EVERY),
        Check(partial(_resume, folder, path, (good / "model.safetensors").read_bytes()), RESUME_EVERY),
    )
    return Kind("settings of a run", path.read_bytes(), mutate_json, checks)


def _metrics_kind(good: Path, folder: Path) -> Kind:
    path = _copy_of(good, folder, finished=True) / "metrics.jsonl"
    return Kind("metrics of a run", path.read_bytes(), mutate_lines, _checks_beside(good, path, _check_metrics))


def _checks_beside(good: Path, path: Path, check: Callable[[Path, bytes], None]) -> tuple[Check, ...]:
    """Checks of a record that lies beside the weights: its own, that the tools read it, and that a run resumes."""
    weights = (good / "model.safetensors").read_bytes()
    return (
        Check(partial(check, path)),
        Check(partial(_check_recordable, path)),
        Check(partial(_resume, path.parent, path, weights), RESUME_EVERY),
    )


def _check_metrics(path: Path, content: bytes) -> None:
    """Metrics have no checksum; lines that are not metrics are set aside and reported."""
    entries = _mend(path, content, lambda run: run.mend_records(CONFIG.epochs, finished=True))
    if entries is not None and [entry["epoch"] for entry in entries] != [1, 2]:
        raise Wrong(f"nothing was reported, but there are {len(entries)} entries")


def _mend(path: Path, content: bytes, mend: Callable[[RunFolder], list[str]]) -> list[dict[str, Any]] | None:
    """The metrics if a record is accepted; a damaged one must be reported, kept aside, and replaced by a good one."""
    run, aside = RunFolder(path.parent), path.with_name(f"{path.name}.damaged")
    path.write_bytes(content)
    sentences = mend(run)
    if not sentences:
        return run.read_metrics()
    check_sentence(" ".join(sentences), path)
    if aside.read_bytes() != content:
        raise Wrong("the damaged record was not kept as it was")
    aside.unlink()
    if path.exists() and any(path.name in sentence for sentence in mend(run) if "incomplete" not in sentence):
        raise Wrong("the mended record is damaged")
    for left in path.parent.glob(f"{path.name}.damaged*"):
        left.unlink()
    return None


def _check_recordable(path: Path, content: bytes) -> None:
    """A run with damaged records is recorded by the tools if they are whole, and else refused."""
    path.write_bytes(content)
    read_or_refuse(lambda: make_tables({"run": record_run(path.parent)}), path.parent, ValueError)


def _environment_kind(good: Path, folder: Path) -> Kind:
    path = _copy_of(good, folder, finished=True) / "environment.json"
    return Kind("environment of a run", path.read_bytes(), mutate_json, _checks_beside(good, path, _check_environment))


def _check_environment(path: Path, content: bytes) -> None:
    with mock.patch("torchscn.training.run_folder.describe_environment", return_value={"torch": "2"}):  # asks git
        _mend(path, content, lambda run: run.mend_records(CONFIG.epochs, finished=False))


def _record_kind(good: Path, folder: Path) -> Kind:
    path = save_record(
        folder, record_run(good) | {"storage": [{"stored_as": "float32", "error": 1, "other_answers": 0}]}
    )
    pages = folder.parent / "pages"
    pages.mkdir()
    for page in ("results.md", "README.md"):
        (pages / page).write_text("<!-- begin runs --><!-- end runs -->")
    (pages / "gpu.md").touch()
    arguments = ["--records", str(folder), "--docs", str(pages), "--readme", str(pages / "README.md")]
    checks = (
        Check(partial(_check_record, path)),
        Check(lambda content: _command_on(path, results_main, arguments, content), COMMAND_EVERY),
    )
    return Kind("record of a run", path.read_bytes(), mutate_json, checks)


def _check_record(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    read_or_refuse(lambda: make_tables(load_records(path.parent)), path, ValueError)


def _command_on(path: Path, command: Callable[[list[str]], Any], arguments: list[str], content: bytes) -> None:
    path.write_bytes(content)
    check_command(command, arguments, path)


def _benchmark_kind(folder: Path) -> Kind:
    folder.mkdir()
    path = folder / "scaling.json"
    rows = [{"over": over, "n": 2, "seconds": 0.1} for over in ("atoms", "signals", "threads")]
    machine = {"threads": 1, "kernel": "torch", "torch": "2"}
    result = {"suite": "scaling", "about": "x", "machine": machine, "rounds": 1, "took_seconds": 1.0, "rows": rows}
    checks = (Check(partial(_check_benchmark, path)),)
    return Kind("results of a benchmark", json.dumps(result).encode(), mutate_json, checks)


def _check_benchmark(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    read_or_refuse(lambda: load_results(path.parent), path, ValueError)


def _recipe_kind(folder: Path) -> Kind:
    path = folder / "recipe.toml"
    good = (
        b'data = "digits"\nmodel = "scn1"\nstem = 8\ntol = 1e-3\nmilestones = [1, 2]\nflip = true\nmax_iter = "none"\n'
    )
    checks = (
        Check(partial(_check_recipe, path)),
        Check(lambda content: _command_on(path, main, ["recipes", str(path)], content), COMMAND_EVERY),
    )
    return Kind("recipe", good, _mutate_recipe, checks)


def _mutate_recipe(content: bytes, dice: random.Random) -> Mutation:
    if dice.random() < 0.5:
        return mutate_text(content, dice)
    lines, value = content.decode().splitlines(), dice.choice(ODD_VALUES)
    at = dice.randrange(len(lines))
    lines[at] = f"{lines[at].split(' = ')[0]} = {value}"
    return f"odd value {lines[at][:30]}", "\n".join(lines).encode()


def _check_recipe(path: Path, content: bytes) -> None:
    """A recipe is written by people: what can be read is meant."""
    path.write_bytes(content)
    read_or_refuse(lambda: load_recipe(str(path)), path, ConfigError)


NAME = "scn4-mnist"


def _package(folder: Path) -> Path:
    """A copy of one of the package's networks, with its hash."""
    folder.mkdir()
    source = weights.pretrained_folder() / f"{NAME}.safetensors"
    shutil.copy(source, folder)
    (folder / weights.HASHES).write_text(f"{weights.file_hash(source)}  {source.name}\n")
    return folder


def _load_from(folder: Path) -> TrainedWeights:
    weights._known_hashes.cache_clear()
    try:
        with mock.patch.object(weights, "pretrained_folder", return_value=folder):
            return weights.load_pretrained(NAME)
    finally:
        weights._known_hashes.cache_clear()


def _pretrained_kind(folder: Path) -> Kind:
    path = _package(folder) / f"{NAME}.safetensors"
    return Kind(
        "network of the package",
        path.read_bytes(),
        mutate_header,
        (Check(partial(_check_package, path, _load_from(folder))),),
    )


def _hashes_kind(folder: Path) -> Kind:
    path = _package(folder) / weights.HASHES
    return Kind(
        "hashes of the package",
        path.read_bytes(),
        mutate_text,
        (Check(partial(_check_package, path, _load_from(folder))),),
    )


def _check_package(path: Path, good: TrainedWeights, content: bytes) -> None:
    path.write_bytes(content)
    found = read_or_refuse(lambda: _load_from(path.parent), path.parent, CheckpointError)
    if not isinstance(found, Refused) and (_flat({"": found.model}), found.about) != (
        _flat({"": good.model}),
        good.about,
    ):
        raise Wrong("other weights")
