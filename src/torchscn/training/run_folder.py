"""The folder of a run: settings, environment, metrics, weights and pictures, each in one file."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchscn import kernels
from torchscn.models import outdated_by, resolve_options
from torchscn.network import Network, adopt
from torchscn.training.checkpoint import CURRENT, PREVIOUS, CheckpointError, load_checkpoint
from torchscn.training.config import TrainConfig, read_config
from torchscn.weights import TrainedWeights, read_weights

__all__ = ["RunFolder", "TrainedModel", "load_trained"]


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
        """Create the folder with the settings and the environment; a run to go on with must have the same settings."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self.has_checkpoint() and self.config.exists() and (kept := read_config(self.config)) != config:
            changed = [name for name in vars(config) if getattr(kept, name) != getattr(config, name)]
            raise CheckpointError(
                f"{self.path} holds a run with other settings ({', '.join(changed)} differ). "
                "Resume with the same settings, or choose another --run-dir."
            )
        _write_text(self.config, config.to_json())
        if not self.has_checkpoint():
            _write_text(self.environment, json.dumps(describe_environment(), indent=2) + "\n")

    def go_on(self, n_epochs: int) -> None:
        """Keep the environment in which a run is gone on with after so many epochs, in a list ``resumed``."""
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
    """A network out of a run, ready to use."""

    model: Network  # knows its preprocessing and classes
    config: TrainConfig
    note: str | None  # what a user should know, for instance that the run is not finished


def load_trained(folder: str | Path, overrides: Mapping[str, Any] | None = None) -> TrainedModel:
    """The network of a run: its final weights, or those of the last checkpoint if the run is not finished.

    Args:
        folder: the run folder.
        overrides: settings of the solver to use instead (``solver``, ``tol``, ``max_iter``). Another solver or
            tolerance than the run's own also drops its cap on the iterations, another solver its tolerance and
            gradient rule too.

    Raises:
        ConfigError: this is no run folder.
        CheckpointError: it holds no weights, or of another network.
    """
    run = RunFolder(Path(folder))
    config = read_config(run.config)
    if run.weights.exists():
        weights, note = read_weights(run.weights), None
    else:
        weights, note = _weights_so_far(run, config)
    own = resolve_options(config.preset, config.model_options())
    outdated: dict[str, Any] = dict.fromkeys(outdated_by(own, overrides or {}))
    used = replace(config, **outdated).override(overrides or {})
    model = used.make_model(len(weights.about["classes"]), len(weights.normalization["mean"]))
    adopt(model, weights, source=str(folder))
    return TrainedModel(model.eval(), used, note)


def _weights_so_far(run: RunFolder, config: TrainConfig) -> tuple[TrainedWeights, str]:
    """The weights of the last checkpoint, and a sentence about them."""
    checkpoint, problem = load_checkpoint(run.path)
    model = checkpoint.tensors["ema" if "ema" in checkpoint.tensors else "model"]
    weights = TrainedWeights(model, checkpoint.tensors["normalization"], checkpoint.numbers["about"])
    epoch = checkpoint.numbers["position"]["epoch"]
    note = f"this run is not finished: these are its weights after {epoch} of {config.epochs} epochs."
    return weights, f"{problem} {note}" if problem else note


def describe_environment() -> dict[str, Any]:
    """What of the machine and the installation bears on a run."""
    import torchscn

    return {
        "torchscn": torchscn.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "kernel": kernels.active_kernel(),
        "command": _command(),
    }


def _command() -> str:
    """What was typed: ``scn`` with its arguments, or the script that called us."""
    program = Path(sys.argv[0])
    is_ours = program.stem == "scn" or program.parts[-2:] == ("torchscn", "__main__.py")
    return " ".join(["scn" if is_ours else f"python {program.name}", *sys.argv[1:]])


def _commit() -> str | None:
    """The commit of the checkout the package runs from, if it does."""
    # An installed package may lie inside a checkout of something else, which does not track it.
    if not _git("ls-files", Path(__file__).name):
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=12")


def _git(*arguments: str) -> str | None:
    """What git says about the folder of this file, if anything."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def _write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def count_parameters(model: nn.Module) -> int:
    """Numbers that training changes."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
