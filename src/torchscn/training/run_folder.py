"""The folder of a run: settings, environment, metrics, weights and pictures, each in one file."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from torchscn.environment import describe_environment
from torchscn.models import create_model
from torchscn.network import Network
from torchscn.training.checkpoint import CURRENT, PREVIOUS, CheckpointError, load_checkpoint
from torchscn.training.config import TrainConfig, read_config
from torchscn.weights import TrainedWeights, list_pretrained, read_weights

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

    def begin(self, config: TrainConfig) -> None:
        """Create the folder with the settings and the environment; a resumed run must have the same settings."""
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
            _write_text(self.environment, json.dumps(describe_environment(), indent=2) + "\n")

    def note_resumption(self, n_epochs: int) -> None:
        """Record the environment in which a run is resumed after ``n_epochs`` epochs, in a list ``resumed``."""
        environment = json.loads(self.environment.read_text())
        environment.setdefault("resumed", []).append({"after_epochs": n_epochs, **describe_environment()})
        _write_text(self.environment, json.dumps(environment, indent=2) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``; a last line cut short by a crash is left out."""
        entries = []
        for line in self.metrics.read_text().splitlines() if self.metrics.exists() else []:
            try:
                entries.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return entries

    def write_metrics(self, entries: list[dict[str, Any]]) -> None:
        """Replace ``metrics.jsonl``."""
        _write_text(self.metrics, "".join(json.dumps(entry) + "\n" for entry in entries))


@dataclass(frozen=True)
class TrainedModel:
    """A trained network, ready to use."""

    model: Network  # knows its preprocessing and classes
    config: TrainConfig
    note: str | None  # what a user should know, for instance that the run is not finished


def load_trained(source: str | Path, overrides: Mapping[str, Any] | None = None) -> TrainedModel:
    """Load a trained network: that of a run folder, or one that comes with the package.

    If the run is not finished, the weights of the last checkpoint are used.

    Args:
        source: a run folder, or a name from :func:`torchscn.list_pretrained`.
        overrides: solver options to use instead (``solver``, ``tol``, ``max_iter``); a new solver resets those chosen
            for the old one, see :meth:`torchscn.Options.change`.

    Raises:
        ValueError: there is neither a folder nor a network of that name.
        ConfigError: this is not a run folder.
        CheckpointError: it holds no weights, or those of another network.

    Example:
        >>> load_trained("scn4-mnist", {"tol": 1e-4}).model.classes[:3]
        ('0', '1', '2')
    """
    names = list_pretrained()
    if not Path(source).exists() and str(source) in names:
        model, data = str(source).split("-", 1)
        network = create_model(model, pretrained=data, **(overrides or {}))
        return TrainedModel(network, TrainConfig(data=data, model=model), None)
    if not Path(source).exists():
        raise ValueError(f"{str(source)!r} is neither a run folder nor a network of the package ({', '.join(names)}).")
    return _load_run(RunFolder(Path(source)), overrides or {})


def _load_run(run: RunFolder, overrides: Mapping[str, Any]) -> TrainedModel:
    config = read_config(run.config)
    if run.weights.exists():
        weights, note = read_weights(run.weights), None
    else:
        weights, note = _weights_so_far(run, config)
    model = config.make_model(weights.num_classes, weights.in_channels, overrides)
    model.adopt(weights, source=str(run.path))
    return TrainedModel(model.eval(), config, note)


def _weights_so_far(run: RunFolder, config: TrainConfig) -> tuple[TrainedWeights, str]:
    """The weights of the last checkpoint, and a sentence about them."""
    checkpoint, problem = load_checkpoint(run.path)
    model = checkpoint.tensors["ema" if "ema" in checkpoint.tensors else "model"]
    weights = TrainedWeights(model, checkpoint.tensors["normalization"], checkpoint.numbers["about"])
    epoch = checkpoint.numbers["position"]["epoch"]
    note = f"this run is not finished: these are its weights after {epoch} of {config.epochs} epochs."
    return weights, f"{problem} {note}" if problem else note


def _write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def count_parameters(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
