"""Checkpoints: tensors in safetensors, numbers in its header, written atomically.

The previous file is kept, as a fallback for a checkpoint that cannot be read (a faulty disk, a truncated file).
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor, nn
from torch.optim import Optimizer

from torchscn.weights import CheckpointError, fill_model, read_groups, write_groups

__all__ = [
    "CURRENT",
    "PREVIOUS",
    "Checkpoint",
    "CheckpointError",
    "load_checkpoint",
    "optimizer_tensors",
    "save_checkpoint",
]

CURRENT = "checkpoint.safetensors"
PREVIOUS = "checkpoint.previous.safetensors"


@dataclass
class Checkpoint:
    """Named groups of tensors (``model``, ``optimizer``, ...) and plain numbers."""

    tensors: dict[str, dict[str, Tensor]]
    numbers: dict[str, Any] = field(default_factory=dict)

    def restore_model(self, model: nn.Module, group: str = "model") -> None:
        """Load the weights of a group into ``model``."""
        fill_model(model, self.tensors[group], source="the checkpoint")

    def restore_optimizer(self, optimizer: Optimizer) -> None:
        """Restore the state of the optimizer; parameter groups keep their own settings."""
        state = optimizer.state_dict()
        state["state"] = {}
        for name, value in self.tensors.get("optimizer", {}).items():
            index, key = name.split(".", 1)
            state["state"].setdefault(int(index), {})[key] = value
        optimizer.load_state_dict(state)


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """The tensors an optimizer keeps, by parameter index and name."""
    return {
        f"{index}.{key}": value
        for index, entries in optimizer.state_dict()["state"].items()
        for key, value in entries.items()
        if isinstance(value, Tensor)
    }


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; at every moment the folder holds a complete one."""
    temporary, current = folder / "checkpoint.next.safetensors", folder / CURRENT
    try:
        write_groups(temporary, checkpoint.tensors, {"numbers": json.dumps(checkpoint.numbers)})
    except OSError as error:
        advice = " The previous checkpoint is intact: use --resume to resume from it." if current.exists() else ""
        raise OSError(f"{error}{advice}") from error
    if current.exists():
        os.replace(current, folder / PREVIOUS)
    os.replace(temporary, current)


def load_checkpoint(folder: Path) -> tuple[Checkpoint, str | None]:
    """The newest readable checkpoint, and a sentence about the newer one if that cannot be read.

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
            problem = f"{path} cannot be read ({error}); falling back to the previous checkpoint."
    raise CheckpointError(problem or f"{folder} holds no checkpoint.")


def _read(path: Path) -> Checkpoint:
    groups, texts = read_groups(path)
    return Checkpoint(groups, json.loads(texts["numbers"]))
