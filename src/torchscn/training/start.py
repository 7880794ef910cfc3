"""Training that goes on from a trained network instead of random weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchscn.network import Network
from torchscn.training.config import ConfigError
from torchscn.training.run_folder import RunFolder, load_trained
from torchscn.weights import file_hash, fill_model, load_pretrained, pretrained_folder

__all__ = ["Start", "adopt_start", "describe_start", "load_start"]


@dataclass(frozen=True)
class Start:
    """A trained network to start from."""

    model: Network
    about: dict[str, Any]  # as from describe_start


def load_start(name: str) -> Start:
    """The network to start from.

    Args:
        name: the folder of a finished run, or a name from :func:`torchscn.list_pretrained`.

    Raises:
        ConfigError: the run is not finished.
        ValueError: there is no such folder or network, or it cannot be read.
    """
    trained = load_trained(name)
    if trained.note is not None:
        raise ConfigError(f"start_from={name!r} cannot be used: {trained.note} Finish it first (--resume).")
    return Start(trained.model, describe_start(name))


def adopt_start(model: Network, start: Start, classes: tuple[str, ...]) -> None:
    """Give a network the weights of another one; the classifier only where both tell the same classes apart.

    Args:
        model: the network to train.
        start: the trained one, of the same shape.
        classes: what ``model`` is to tell apart.
    """
    weights = start.model.state_dict()
    if start.model.classes != classes:
        weights |= {key: value for key, value in model.state_dict().items() if key.startswith("classifier.")}
    fill_model(model, weights, f"start_from={start.about['name']!r}")


def describe_start(name: str) -> dict[str, Any]:
    """What a run starts from: the name, the SHA-256 of the file of weights, and the epochs these were trained for.

    The epochs include those of a network that it started from itself; they are None where nobody knows.
    """
    if not Path(name).exists():
        weights = load_pretrained(name)
        path = pretrained_folder() / f"{name}.safetensors"
        return {"name": name, "sha256": file_hash(path), "epochs": weights.about.get("epochs")}
    run = RunFolder(Path(name))
    return {"name": name, "sha256": file_hash(run.weights), "epochs": run.count_epochs()}
