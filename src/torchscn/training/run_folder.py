"""The folder of a run: settings, environment, metrics, weights and pictures, each in one file."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from torchscn.atomic import replace_file
from torchscn.environment import describe_environment
from torchscn.models import create_model
from torchscn.network import Network
from torchscn.training.checkpoint import CURRENT, PREVIOUS, CheckpointError, load_checkpoint
from torchscn.training.config import ConfigError, TrainConfig, read_config
from torchscn.weights import TrainedWeights, check_match, check_weights, list_pretrained, load_pretrained, read_weights

try:
    import fcntl
except ImportError:  # on Windows, which has no such locks
    fcntl = None  # type: ignore[assignment]

__all__ = ["RunFolder", "TrainedModel", "count_parameters", "load_trained"]


@dataclass(frozen=True)
class RunFolder:
    """Where the files of a run are."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def curves(self) -> Path:
        return self.path / "curves.png"

    def has_checkpoint(self) -> bool:
        return any((self.path / name).exists() for name in (CURRENT, PREVIOUS))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other trainings out of the folder; the system releases the lock if this process dies.

        Raises:
            ConfigError: another training is running in it.
        """
        if fcntl is None:
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "ab") as file:
            if not _take_lock(file):
                raise ConfigError(
                    f"another training is running in {self.path}; wait until it ends, or choose another --run-dir."
                )
            try:
                yield
            finally:
                _release_lock(file)

    def begin(self, config: TrainConfig, started_from: Mapping[str, Any] | None = None) -> None:
        """Create the folder with the settings and the environment; a resumed run must have the same settings.

        Args:
            config: all settings.
            started_from: what a new run starts from, if not from random weights; kept with the environment.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if self.has_checkpoint() and self.config.exists() and (kept := read_config(self.config)) != config:
            before, now = kept.flat(), config.flat()
            changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            raise CheckpointError(
                f"{self.path} holds a run with other settings ({', '.join(changed)} differ). "
                "Resume with the same settings, or choose another --run-dir."
            )
        _write_text(self.config, config.to_json())
        if not self.has_checkpoint():
            environment = describe_environment() | ({"started_from": started_from} if started_from else {})
            _write_text(self.environment, json.dumps(environment, indent=2) + "\n")

    def count_epochs(self) -> int | None:
        """The epochs that a finished run's weights were trained for, with those of the weights it started from.

        None where nobody knows: the network it started from, or the record of that, does not say.
        """
        config = read_config(self.config)
        if config.start_from is None:
            return config.epochs
        started_from = (_read_environment(self.environment) or {}).get("started_from")
        before = started_from.get("epochs") if isinstance(started_from, dict) else None
        return before + config.epochs if isinstance(before, int) else None

    def mend_records(self, n_epochs: int, *, finished: bool) -> list[str]:
        """Prepare the records of a run that is resumed after ``n_epochs`` epochs.

        Records are for people; the rest of the run does not depend on them. So a damaged one is set aside and a new one
        begun.

        Returns:
            One sentence for each record that was damaged or missing.
        """
        sentences = [self._mend_metrics(n_epochs), None if finished else self._note_resumption(n_epochs)]
        return [sentence for sentence in sentences if sentence is not None]

    def _note_resumption(self, n_epochs: int) -> str | None:
        """Record the environment in which a run is resumed, in a list ``resumed``."""
        environment, sentence = _read_environment(self.environment), None
        if environment is None:
            lost = "the environment in which the run was started"
            sentence = f"{_lose(self.environment)}; the new one does not know {lost}."
            environment = {**describe_environment(), "lost": lost}
        environment.setdefault("resumed", []).append({"after_epochs": n_epochs, **describe_environment()})
        _write_text(self.environment, json.dumps(environment, indent=2) + "\n")
        return sentence

    def _mend_metrics(self, n_epochs: int) -> str | None:
        entries, is_whole = _read_entries(self.metrics)
        kept = [entry for entry in entries if entry["epoch"] <= n_epochs]
        if is_whole and len(kept) == n_epochs:
            return None
        sentence = f"{_lose(self.metrics)}; the new one has {len(kept)} of the {n_epochs} epochs so far."
        self.write_metrics(kept)
        return sentence

    def read_metrics(self) -> list[dict[str, Any]]:
        """The entries of ``metrics.jsonl``; damaged lines are left out."""
        return _read_entries(self.metrics)[0]

    def write_metrics(self, entries: list[dict[str, Any]]) -> None:
        """Replace ``metrics.jsonl``."""
        _write_text(self.metrics, "".join(json.dumps(entry) + "\n" for entry in entries))


@dataclass(frozen=True)
class TrainedModel:
    """A trained network, ready to use."""

    model: Network  # knows its preprocessing and classes
    config: TrainConfig
    note: str | None  # what a user should know, for instance that the run is not finished


def load_trained(folder: str | Path, overrides: Mapping[str, Any] | None = None) -> TrainedModel:
    """Load a trained network: that of a run folder, or one that comes with the package.

    If the run is not finished, the weights of the last checkpoint are used.

    Args:
        folder: a run folder, or a name from :func:`torchscn.list_pretrained`.
        overrides: solver options to use instead (``solver``, ``tol``, ``max_iter``); a new solver resets those chosen
            for the old one, see :meth:`torchscn.Options.change`.

    Raises:
        ValueError: there is neither a folder nor a network of that name.
        ConfigError: this is not a run folder, or its settings are not those the network was trained with.
        CheckpointError: it holds no weights, or those of another network.

    Example:
        >>> load_trained("scn4-mnist", {"tol": 1e-4}).model.classes[:3]
        ('0', '1', '2')
    """
    names = list_pretrained()
    if not Path(folder).exists() and str(folder) in names:
        model, data = str(folder).split("-", 1)
        network = create_model(model, pretrained=data, **(overrides or {}))
        return TrainedModel(
            network, TrainConfig(data=data, model=model, **load_pretrained(str(folder)).about["options"]), None
        )
    if not Path(folder).exists():
        raise ValueError(f"{str(folder)!r} is neither a run folder nor a network of the package ({', '.join(names)}).")
    return _load_run(RunFolder(Path(folder)), overrides or {})


def _load_run(run: RunFolder, overrides: Mapping[str, Any]) -> TrainedModel:
    config = read_config(run.config)
    if run.weights.exists():
        weights, source, note = read_weights(run.weights), str(run.weights), None
    else:
        weights, source, note = _weights_so_far(run, config)
    _check_settings(run, config, weights, source)
    _check_network(run, config, weights, source)
    model = config.make_model(weights.num_classes, weights.in_channels, overrides)
    model.adopt(weights, source)
    return TrainedModel(model.eval(), config, note)


def _check_settings(run: RunFolder, config: TrainConfig, weights: TrainedWeights, source: str) -> None:
    """Check that the settings are those the weights were trained with: others may fit them, and give other answers."""
    trained, now = weights.about.get("network"), config.network()
    if not isinstance(trained, dict) or trained == now:  # version 0.1 did not keep them
        return
    changed = [name for name in {**trained, **now} if trained.get(name) != now.get(name)]
    raise ConfigError(
        f"{run.config} describes another network than the one in {source} ({', '.join(changed)} differ). Undo the "
        "change; options of the solver can be given when a network is loaded."
    )


def _check_network(run: RunFolder, config: TrainConfig, weights: TrainedWeights, source: str) -> None:
    """Check that the weights belong to the network of the settings, without allocating memory for the latter."""
    try:
        with torch.device("meta"):
            model = config.make_model(weights.num_classes, weights.in_channels)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]  # torch adds its own stack to some
        raise ConfigError(f"{run.config} describes no network: {reason}") from error
    check_match(model.state_dict(), weights.model, source)


def _weights_so_far(run: RunFolder, config: TrainConfig) -> tuple[TrainedWeights, str, str]:
    """The weights of the last checkpoint, the file they are from, and a sentence about them."""
    checkpoint, problem = load_checkpoint(run.path)
    groups = checkpoint.tensors
    if "ema" in groups:
        groups = groups | {"model": groups["ema"]}
    weights = check_weights(groups, checkpoint.numbers.get("about"), checkpoint.source)
    epoch = checkpoint.position.epoch
    note = f"this run is not finished: these are its weights after {epoch} of {config.epochs} epochs."
    return weights, checkpoint.source, f"{problem} {note}" if problem else note


def _take_lock(file: BinaryIO) -> bool:
    """Lock a file; False if another process holds it."""
    for _ in range(10):  # a process that was just killed may need a moment to disappear
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)
        except OSError:  # a file system without locks: do without
            return True
        else:
            return True
    return False


def _release_lock(file: BinaryIO) -> None:
    # Closing is not enough if a child process was forked meanwhile, since it has the file open too.
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)


def _read_environment(path: Path) -> dict[str, Any] | None:
    """The content of ``environment.json``, or None if that is not what it should be."""
    try:
        environment = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(environment, dict):
        return None
    resumed = environment.get("resumed", [])
    return environment if isinstance(resumed, list) and all(isinstance(entry, dict) for entry in resumed) else None


def _read_entries(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The good lines of ``metrics.jsonl``, and whether all of them are good."""
    try:
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    except OSError:
        return [], False
    entries: list[dict[str, Any]] = []
    for line in lines:
        entry = _read_entry(line)
        if entry is not None and entry["epoch"] > (entries[-1]["epoch"] if entries else 0):
            entries.append(entry)
    return entries, len(entries) == len(lines)


def _read_entry(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or type(entry.get("epoch")) is not int:
        return None
    errors = [entry.get("train_error"), entry.get("test_error", 0)]  # not every epoch is tested
    is_good = all(isinstance(error, (int, float)) and 0 <= error <= 100 for error in errors)
    return entry if is_good else None


def _lose(path: Path) -> str:
    """Set a damaged record aside under another name; returns the beginning of a sentence about it."""
    if not (path.exists() or path.is_symlink()):
        return f"{path} is missing"
    aside, number = path.with_name(f"{path.name}.damaged"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged.{number}")
    os.replace(path, aside)
    return f"{path} is damaged or incomplete and was renamed to {aside.name}"


def _write_text(path: Path, text: str) -> None:
    replace_file(path, [text.encode()])


def count_parameters(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
