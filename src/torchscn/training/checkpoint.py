"""Checkpoints: tensors in safetensors, numbers in its header, written whole or not at all.

The file before the last is kept. A checkpoint that does not read (a disk that lied, a file cut short) falls back to it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["Checkpoint", "CheckpointError", "load_checkpoint", "save_checkpoint", "write_tensors"]

CURRENT = "checkpoint.safetensors"
PREVIOUS = "checkpoint.previous.safetensors"


class CheckpointError(ValueError):
    """A checkpoint that is missing, broken, or of another network."""


@dataclass
class Checkpoint:
    """Named groups of tensors (``model``, ``optimizer``, ...) and plain numbers."""

    tensors: dict[str, dict[str, Tensor]]
    numbers: dict[str, Any] = field(default_factory=dict)

    def restore_model(self, model: nn.Module, group: str = "model") -> None:
        """Put a group's weights into ``model``."""
        load_weights(model, self.tensors[group], source="the checkpoint")

    def restore_optimizer(self, optimizer: Optimizer) -> None:
        """Put the state of the optimizer back; parameter groups keep their own settings."""
        state = optimizer.state_dict()
        state["state"] = {}
        for name, value in self.tensors.get("optimizer", {}).items():
            index, key = name.split(".", 1)
            state["state"].setdefault(int(index), {})[key] = value
        optimizer.load_state_dict(state)


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """The tensors an optimizer keeps, by index of the parameter and name."""
    return {
        f"{index}.{key}": value
        for index, entries in optimizer.state_dict()["state"].items()
        for key, value in entries.items()
        if isinstance(value, Tensor)
    }


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load weights whose names and shapes must match; the error names the first that does not."""
    expected = model.state_dict()
    for name in [*expected, *weights]:
        ours = tuple(expected[name].shape) if name in expected else "nothing"
        theirs = tuple(weights[name].shape) if name in weights else "nothing"
        if ours != theirs:
            raise CheckpointError(
                f"{source} is of another network: for {name!r} it has {theirs}, this network {ours}. "
                "Use the settings it was trained with, or another run folder."
            )
    model.load_state_dict(weights)


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; at every moment the folder holds a whole one."""
    flat = {
        f"{group}/{name}": value for group, tensors in checkpoint.tensors.items() for name, value in tensors.items()
    }
    temporary = folder / "checkpoint.next.safetensors"
    write_tensors(temporary, flat, {"numbers": json.dumps(checkpoint.numbers)})
    current = folder / CURRENT
    if current.exists():
        os.replace(current, folder / PREVIOUS)
    os.replace(temporary, current)


def load_checkpoint(folder: Path) -> tuple[Checkpoint, str | None]:
    """The newest checkpoint that reads, and a sentence about the newer one if that did not.

    Raises:
        CheckpointError: there is none.
    """
    problem = None
    for name in (CURRENT, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            return _read(path), problem
        except (safetensors.SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
            problem = f"{path} does not read ({error}); falling back to the checkpoint before it."
    raise CheckpointError(problem or f"{folder} holds no checkpoint.")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file through to the disk; a failure (a full disk) leaves nothing behind."""
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(safetensors.torch.save(contiguous, metadata))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(
            f"could not write {path}: {error}. Nothing of an earlier checkpoint was lost; "
            "free some space or choose another folder, and resume."
        ) from error


def _read(path: Path) -> Checkpoint:
    with safetensors.safe_open(path, framework="pt") as file:
        numbers = json.loads(file.metadata()["numbers"])
        flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in flat.items():
        group, rest = name.split("/", 1)
        groups.setdefault(group, {})[rest] = value
    return Checkpoint(groups, numbers)
