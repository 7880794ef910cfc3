"""Settings of a training run: one flat table with a default and a comment each, filled from a recipe and overrides."""

import inspect
import json
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from torchscn import checks
from torchscn.data import Augmentation
from torchscn.models import create_model
from torchscn.network import Network

__all__ = ["ConfigError", "TrainConfig", "list_recipes", "load_recipe", "read_config"]


class ConfigError(ValueError):
    """A recipe or setting that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the result of a run, apart from the machine."""

    # Data
    data: str = "digits"  # a name of `scn data`, or folder:PATH
    validation: int = 0  # training images set aside and tested on instead of the test set, for tuning
    limit: int = 0  # use only this many training images (0: all), for a quick try
    mean: str = "channel"  # subtract the mean per "channel" or per "pixel"
    divide_std: bool = False  # also divide by the standard deviation per channel
    shift: int = 0  # random shift, up to this many pixels
    flip: bool = False  # random horizontal flip
    cutout: int = 0  # side of a random square set to zero
    per_image: bool = True  # draw the augmentation for each image; False: once for the whole batch, as in the paper

    # Model; an option that is not set keeps the default of create_model (or of the preset)
    model: str = "scn1"
    preset: str | None = None
    stem: int | None = None
    width: int | None = None
    order: str | None = None
    downsample: tuple[int, ...] | None = None
    norm: str | None = None
    affine: bool | None = None
    lam1: float | None = None
    lam2: float | None = None
    per_atom: bool | None = None
    learn_lam1: bool | None = None
    unit_norm: bool | None = None
    init: str | None = None
    solver: str | None = None
    tol: float | None = None
    max_iter: int | None = None
    grad: str | None = None

    # Optimisation
    epochs: int = 10
    batch_size: int = 128
    lr: float = 0.1  # peak learning rate
    schedule: str = "cosine"  # "cosine" to zero, "onecycle" (rise then fall, linear), or "steps"
    warmup: float = 0.0  # epochs of linear rise before cosine or steps; for onecycle, the share of the run spent rising
    milestones: tuple[int, ...] = ()  # epochs after which "steps" divides the rate by ten
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4  # on everything, lam1 included
    clip: float = 0.0  # scale gradients of a larger norm down to it (0: never), a guard against a lone wild step
    label_smoothing: float = 0.0
    ema: float = 0.0  # decay of the averaged weights that are evaluated and kept (0: none)
    seed: int = 0

    # Record
    checkpoint_seconds: float = 60.0  # time between checkpoints inside an epoch
    tensorboard: bool = False  # also write event files into the run folder

    def __post_init__(self) -> None:
        try:
            self._check()
        except (ValueError, TypeError) as error:
            raise ConfigError(str(error)) from error

    def _check(self) -> None:
        for name, least in (
            ("epochs", 1),
            ("batch_size", 1),
            ("validation", 0),
            ("limit", 0),
            ("shift", 0),
            ("cutout", 0),
        ):
            checks.check_number(name, getattr(self, name), at_least=least, whole=True)
        not_negative = (
            "lr",
            "warmup",
            "momentum",
            "weight_decay",
            "clip",
            "label_smoothing",
            "ema",
            "checkpoint_seconds",
        )
        for name in not_negative:
            checks.check_number(name, getattr(self, name), at_least=0)
        for name in ("momentum", "label_smoothing", "ema"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name} must be below 1; got {getattr(self, name)}.")
        checks.check_choice("schedule", self.schedule, ("cosine", "onecycle", "steps"))
        checks.check_choice("mean", self.mean, ("channel", "pixel"))
        if self.schedule == "onecycle" and self.warmup >= 1:
            raise ValueError(f"with schedule='onecycle', warmup is a share of the run below 1; got {self.warmup}.")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0.")

    def make_model(self, num_classes: int, in_channels: int) -> Network:
        """The network these settings describe."""
        return create_model(self.model, num_classes, in_channels, **self.model_options())

    def model_options(self) -> dict[str, Any]:
        """The options of :func:`torchscn.create_model` that are set."""
        options = {name: getattr(self, name) for name in _MODEL_OPTIONS}
        return {name: value for name, value in options.items() if value is not None}

    def changed_settings(self) -> dict[str, Any]:
        """The settings that differ from the defaults."""
        return {name: value for name, value in asdict(self).items() if value != getattr(TrainConfig(), name)}

    def make_augmentation(self) -> Augmentation | None:
        """The augmentation of training batches, if any."""
        if not (self.shift or self.flip or self.cutout):
            return None
        return Augmentation(shift=self.shift, flip=self.flip, cutout=self.cutout, per_image=self.per_image)

    def override(self, settings: Mapping[str, Any]) -> "TrainConfig":
        """These settings with others in their place; texts are read as the setting's type.

        Raises:
            ConfigError: an unknown setting (a near miss is suggested) or a value of the wrong type.

        Example:
            >>> TrainConfig().override({"lr": "0.05", "flip": "true"}).lr
            0.05
        """
        named = {name.replace("-", "_"): value for name, value in settings.items()}
        return replace(self, **{name: _convert(name, value) for name, value in named.items()})

    def to_json(self) -> str:
        """The settings as JSON text, as kept in a run folder."""
        return json.dumps(asdict(self), indent=2) + "\n"


_TYPES: dict[str, Any] = typing.get_type_hints(TrainConfig)
_MODEL_OPTIONS = tuple(name for name in inspect.signature(create_model).parameters if name in _TYPES)


def list_recipes() -> dict[str, str]:
    """Names of the recipes in the package, each with the first line of its comment.

    Example:
        >>> "digits" in list_recipes()
        True
    """
    found = sorted(_recipe_folder().glob("*.toml"))
    return {path.stem: path.read_text().splitlines()[0].lstrip("# ") for path in found}


def load_recipe(name: str) -> TrainConfig:
    """A recipe of the package by name, or any TOML file by path.

    Raises:
        ConfigError: no such recipe (a near miss is suggested), or one that does not read.

    Example:
        >>> load_recipe("digits").data
        'digits'
    """
    path = Path(name) if name.endswith(".toml") else _recipe_folder() / f"{name}.toml"
    if not path.is_file():
        hint = checks.did_you_mean(name, list_recipes())
        raise ConfigError(f"no recipe {name!r}.{hint} `scn recipes` lists them; a path ending in .toml works too.")
    try:
        settings = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a readable TOML file: {error}") from error
    return TrainConfig().override(settings)


def read_config(path: Path) -> TrainConfig:
    """Settings kept by :meth:`TrainConfig.to_json`."""
    try:
        settings = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"{path.parent} is no run folder: it has no {path.name}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not readable JSON: {error}") from error
    return TrainConfig().override({name: value for name, value in settings.items() if value is not None})


def _recipe_folder() -> Path:
    return Path(str(resources.files("torchscn") / "recipes"))


def _convert(name: str, value: Any) -> Any:
    """``value`` as the type of the setting ``name``."""
    if name not in _TYPES:
        raise ConfigError(f"there is no setting {name!r}.{checks.did_you_mean(name, _TYPES)} `scn recipes` lists them.")
    kind = _TYPES[name]
    if isinstance(kind, types.UnionType):
        kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
    try:
        return _as_type(kind, value)
    except (ValueError, TypeError, KeyError):
        readable = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        expected = readable.get(kind, "whole numbers, separated by commas")
        raise ConfigError(f"{name} takes {expected}; got {value!r}.") from None


def _as_type(kind: Any, value: Any) -> Any:
    if kind is bool:
        return value if isinstance(value, bool) else {"true": True, "false": False}[str(value).lower()]
    if kind is int:
        if isinstance(value, (bool, float)):
            raise TypeError
        return int(value)
    if kind is float:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    if kind is str:
        if not isinstance(value, str):
            raise TypeError
        return value
    parts = [part for part in value.split(",") if part] if isinstance(value, str) else value
    return tuple(_as_type(int, part) for part in parts)
