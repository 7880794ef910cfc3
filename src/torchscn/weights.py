"""Weights on disk: safetensors files, written atomically, and the trained networks that come with the package."""

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

__all__ = [
    "CheckpointError",
    "TrainedWeights",
    "fill_model",
    "list_pretrained",
    "load_pretrained",
    "read_groups",
    "read_weights",
    "write_groups",
    "write_weights",
]

HASHES = "SHA256SUMS"


class CheckpointError(ValueError):
    """Weights or a checkpoint that are missing, broken, or belong to another network."""


@dataclass(frozen=True)
class TrainedWeights:
    """What a trained network consists of."""

    model: dict[str, Tensor]  # its state
    normalization: dict[str, Tensor]  # state of its :class:`torchscn.data.Normalization`
    about: dict[str, Any]  # "classes", "image_size"; for weights in the package also what their card says

    @property
    def num_classes(self) -> int:
        return len(self.about["classes"])

    @property
    def in_channels(self) -> int:
        return len(self.normalization["mean"])

    def stored_in(self, dtype: torch.dtype) -> "TrainedWeights":
        """These weights with dictionaries and matrices in another precision; penalties and statistics keep theirs."""
        model = {name: value.to(dtype) if value.dim() > 1 else value for name, value in self.model.items()}
        return TrainedWeights(model, self.normalization, self.about)


def list_pretrained() -> list[str]:
    """Names of the trained networks that come with the package, each ``MODEL-DATA``.

    Example:
        >>> "scn4-mnist" in list_pretrained()
        True
    """
    return sorted(path.stem for path in pretrained_folder().glob("*.safetensors"))


def load_pretrained(name: str) -> TrainedWeights:
    """Weights that come with the package, checked by their hash.

    Args:
        name: one of :func:`list_pretrained`.

    Raises:
        ValueError: there are no weights of that name.
        CheckpointError: the file is not the one that was published.

    Example:
        >>> load_pretrained("scn4-mnist").about["classes"][:3]
        ['0', '1', '2']
    """
    if name not in list_pretrained():
        raise ValueError(f"no weights {name!r} come with this version; available: {', '.join(list_pretrained())}.")
    path = pretrained_folder() / f"{name}.safetensors"
    if file_hash(path) != _known_hashes()[path.name]:
        raise CheckpointError(f"{path} is not the file that was published: its hash differs. Reinstall torchscn.")
    return read_weights(path)


def pretrained_folder() -> Path:
    """The folder of the weights, cards and hashes."""
    return Path(str(resources.files("torchscn") / "pretrained"))


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def _known_hashes() -> dict[str, str]:
    lines = (pretrained_folder() / HASHES).read_text().splitlines()
    return {name: value for value, name in (line.split() for line in lines)}


def read_weights(path: Path) -> TrainedWeights:
    """The content of a file made by :func:`write_weights`.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        groups, metadata = read_groups(path)
        return TrainedWeights(groups["model"], groups["normalization"], json.loads(metadata["about"]))
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}).") from error


def write_weights(path: Path, weights: TrainedWeights) -> None:
    """Save weights with everything that is needed to use them, in one file."""
    groups = {"model": weights.model, "normalization": weights.normalization}
    write_groups(path, groups, {"about": json.dumps(weights.about)})


def read_groups(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, str]]:
    """The named groups of tensors and the texts that :func:`write_groups` saved.

    Raises:
        KeyError: the file holds no texts, so it is not one of ours.
    """
    groups: dict[str, dict[str, Tensor]] = {}
    with safetensors.safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a dict)
            group, rest = name.split("/", 1)
            groups.setdefault(group, {})[rest] = file.get_tensor(name)
        if file.metadata() is None:
            raise KeyError("it has no description")
        return groups, file.metadata()


def write_groups(path: Path, groups: Mapping[str, Mapping[str, Tensor]], texts: dict[str, str]) -> None:
    """Write a safetensors file and flush it to disk; a failure (such as a full disk) leaves nothing behind."""
    # Copies, because the format does not support tied weights: two names for the same memory.
    flat = {
        f"{group}/{name}": value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for group, tensors in groups.items()
        for name, value in tensors.items()
    }
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(safetensors.torch.save(flat, texts))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(f"could not write {path}: {error}. Free some space or choose another folder.") from error
    finally:
        temporary.unlink(missing_ok=True)


def fill_model(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load weights, whose names and shapes must match; the error names the first one that does not."""
    expected = model.state_dict()
    for name in [*expected, *weights]:
        ours = tuple(expected[name].shape) if name in expected else "nothing"
        theirs = tuple(weights[name].shape) if name in weights else "nothing"
        if ours != theirs:
            raise CheckpointError(
                f"{source} belongs to another network: for {name!r} it has {theirs}, this network has {ours}. "
                "Use the settings it was trained with, or another run folder."
            )
    model.load_state_dict(weights)
