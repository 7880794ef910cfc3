"""Checkpoints: tensors in safetensors, numbers and a checksum in its header, written atomically.

The previous file is kept, as a fallback for a checkpoint that cannot be used (a faulty disk, a truncated file, weights
that are not finite).
"""

import json
import math
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchscn.weights import (
    CheckpointError,
    check_finite,
    check_match,
    fill_model,
    read_groups,
    read_table,
    write_groups,
)

__all__ = [
    "CURRENT",
    "PREVIOUS",
    "Checkpoint",
    "CheckpointError",
    "Position",
    "load_checkpoint",
    "optimizer_tensors",
    "save_checkpoint",
]

CURRENT = "checkpoint.safetensors"
PREVIOUS = "checkpoint.previous.safetensors"


@dataclass
class Position:
    """Where a run is: the next batch to train on, and the sums over the epoch so far."""

    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    n_wrong: int = 0
    n_seen: int = 0
    seconds: float = 0.0  # spent on this epoch

    def next_epoch(self) -> "Position":
        return Position(epoch=self.epoch + 1)


@dataclass
class Checkpoint:
    """Named groups of tensors (``model``, ``optimizer``, ...) and plain numbers."""

    tensors: dict[str, dict[str, Tensor]]
    numbers: dict[str, Any] = field(default_factory=dict)
    source: str = "the checkpoint"  # where it comes from, for error messages

    @property
    def position(self) -> Position:
        """Where the run was when the checkpoint was written."""
        return Position(**self.numbers["position"])

    def restore_model(self, model: nn.Module) -> None:
        """Load the weights into ``model``."""
        fill_model(model, self.tensors["model"], self.source)

    def averaged_weights(self, expected: dict[str, Tensor]) -> dict[str, Tensor]:
        """The averaged weights, whose names and shapes must be the ``expected`` ones."""
        check_match(expected, self.tensors.get("ema", {}), self.source)
        return self.tensors["ema"]

    def restore_optimizer(self, optimizer: Optimizer) -> None:
        """Restore the state of the optimizer; parameter groups keep their own settings."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = optimizer.state_dict()
        state["state"] = {}
        for name, value in self.tensors.get("optimizer", {}).items():
            index, _, key = name.partition(".")
            known = index.isdecimal() and len(index) < 10 and int(index) < len(parameters)
            if not known or not _may_belong(key, value, parameters[int(index)]):
                raise CheckpointError(f"{self.source} belongs to another network: its optimizer has {name!r}.")
            state["state"].setdefault(int(index), {})[key] = _laid_out_like(parameters[int(index)], value)
        optimizer.load_state_dict(state)


def _may_belong(key: str, value: Tensor, parameter: Tensor) -> bool:
    """Whether an optimizer can have this value for a parameter: a count of steps, or as many fractions."""
    return value.shape == (() if key == "step" else parameter.shape) and value.is_floating_point()


def _laid_out_like(parameter: Tensor, value: Tensor) -> Tensor:
    """``value`` in the memory layout of its parameter, as the optimizer had it; files know no layouts."""
    if value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)


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


def load_checkpoint(folder: Path, may_be_infinite: Collection[str] = ()) -> tuple[Checkpoint, str | None]:
    """The newest usable checkpoint, and a sentence about the newer one if that is damaged.

    Args:
        folder: folder of the run.
        may_be_infinite: names of weights that need not be finite, such as a mask of the user's own network.

    Raises:
        CheckpointError: there is none.
    """
    problems: list[str] = []
    for path in (folder / CURRENT, folder / PREVIOUS):
        if not path.exists():
            continue
        try:
            checkpoint = _read(path, may_be_infinite)
        except CheckpointError as error:
            problems.append(str(error))
        else:
            return checkpoint, f"{problems[0]} Falling back to the previous checkpoint." if problems else None
    raise CheckpointError(" ".join(problems) or f"{folder} holds no checkpoint.")


def _read(path: Path, may_be_infinite: Collection[str]) -> Checkpoint:
    groups, texts = read_groups(path)
    checkpoint = Checkpoint(groups, read_table(path, texts, "numbers"), str(path))
    if "model" not in groups:
        raise CheckpointError(f"{path} is not a checkpoint: it holds no weights.")
    problem = _position_problem(checkpoint.numbers.get("position"))
    if problem is not None:
        raise CheckpointError(f"{path} is not a checkpoint: {problem}.")
    check_finite(groups, str(path), exempt=may_be_infinite)
    return checkpoint


def _position_problem(position: object) -> str | None:
    """What is wrong with the saved position of a run, if anything."""
    names = set(Position.__dataclass_fields__)
    if not isinstance(position, dict) or set(position) != names:
        return f"'position' must be a table of {', '.join(sorted(names))}"
    for name in ("epoch", "batch", "n_wrong", "n_seen"):
        if type(position[name]) is not int or not 0 <= position[name] < 2**53:
            return f"{name!r} of its position must be a whole number, at least 0"
    for name in ("loss_sum", "seconds"):
        if type(position[name]) not in (int, float) or not 0 <= position[name] < math.inf:
            return f"{name!r} of its position must be a number, at least 0"
    if position["batch"] and not position["n_seen"]:
        return "its position is within an epoch in which no image was seen"
    return None
