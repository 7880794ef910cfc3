"""Settings of a training run: one flat table, filled from a recipe and overrides. Works without torch."""

import json
import os
import reprlib
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torchscn.checks import did_you_mean
from torchscn.options import PRESETS, NetworkOptions, Settings, choose_options, setting

if TYPE_CHECKING:
    from torchscn.data import Augmentation
    from torchscn.network import Network

__all__ = [
    "ConfigError",
    "SettingDescription",
    "TrainConfig",
    "describe_settings",
    "list_recipes",
    "load_recipe",
    "read_config",
]

_NONE = "none"  # how a setting without a value is written in recipes and on the command line


class ConfigError(ValueError):
    """A recipe or setting that cannot be used; the message says why and what to do."""


@dataclass(frozen=True, init=False)
class TrainConfig(Settings):
    """Everything that decides the result of a run, apart from the machine.

    It is one flat table, here as in recipes, in run folders and on the command line: the options of the network
    (:class:`torchscn.NetworkOptions`) are listed with the other settings. Options that are not set keep the default of
    the network or of the preset, and read as None.

    Example:
        >>> config = TrainConfig(model="scn2", lr=0.05, tol=1e-3)
        >>> config.lr, config.tol, config.lam2
        (0.05, 0.001, None)
    """

    # Data
    data: str = setting("digits", "a name listed by `scn data`, or folder:PATH")
    validation: int = setting(
        0, "training images held out and tested on instead of the test set", at_least=0, whole=True
    )
    limit: int = setting(0, "use only this many training images, drawn with the seed; 0: all", at_least=0, whole=True)
    mean: str = setting("channel", "which mean to subtract", choices=("channel", "pixel"))
    divide_std: bool = setting(False, "also divide by the standard deviation per channel")
    shift: int = setting(0, "random shift, up to this many pixels", at_least=0, whole=True)
    flip: bool = setting(False, "random horizontal flip")
    alternate_flip: bool = setting(False, "flip every image in every other epoch instead of at random")
    cutout: int = setting(0, "side of a random square set to zero", at_least=0, whole=True)
    per_image: bool = setting(True, "draw the augmentation for each image; false: once per batch, as in the paper")
    early_size: float = setting(
        1.0, "sides of the images early in the run, as a share of the full ones", at_least=0.1, at_most=1
    )
    early_share: float = setting(
        0.5, "share of the epochs with images of early_size, rounded up to whole epochs", at_least=0, at_most=1
    )

    # Model
    model: str = setting("scn1", "one of torchscn.list_models()")
    preset: str | None = setting(None, "options as in the authors' program or the paper's text", choices=tuple(PRESETS))
    options: Mapping[str, Any] = field(default_factory=dict)  # the options of the network that are set
    start_from: str | None = setting(
        None, "a finished run's folder or a network of the package, whose weights to start from; none: random ones"
    )

    # Optimisation
    epochs: int = setting(10, "passes over the training images", at_least=1, whole=True)
    batch_size: int = setting(128, "images per step, of all processes together", at_least=1, whole=True)
    lr: float = setting(0.1, "peak learning rate", at_least=0)
    schedule: str = setting(
        "cosine", "to zero along a cosine, up and down linearly, or in steps", choices=("cosine", "onecycle", "steps")
    )
    warmup: float = setting(
        0.0, "epochs of linear rise before cosine or steps; for onecycle, the share of the run spent rising", at_least=0
    )
    milestones: tuple[int, ...] = setting((), 'epochs after which "steps" divides the rate by ten')
    optimizer: str = setting(
        "sgd", "gradient descent with momentum, or Muon on dictionaries and filters", choices=("sgd", "muon")
    )
    muon_lr: float = setting(0.01, "peak learning rate of Muon: the relative length of a step", at_least=0)
    muon_momentum: float = setting(0.95, "momentum of Muon", at_least=0, below=1)
    momentum: float = setting(0.9, "momentum of the gradient descent", at_least=0, below=1)
    nesterov: bool = setting(False, "look ahead along the momentum")
    weight_decay: float = setting(5e-4, "on everything that Muon does not move", at_least=0)
    decay_lam1: bool = setting(True, "weight decay on lam1, too")
    max_norm: float = setting(
        0.0, "scale atoms with a larger norm down to this norm after each step; 0: never", at_least=0
    )
    clip: float = setting(0.0, "scale gradients with a larger norm down to this norm; 0: never", at_least=0)
    label_smoothing: float = setting(0.0, "share of the label spread over all classes", at_least=0, below=1)
    ema: float = setting(
        0.0, "decay of averaged weights, which are then evaluated and saved; 0: none", at_least=0, below=1
    )
    seed: int = setting(0, "seed of initial weights, order, augmentation and limit", whole=True)

    # Computation
    amp: bool = setting(False, "bfloat16 in forward pass and loss, outside sparse coding; only on CUDA devices")
    compile: bool = setting(False, "train with the network compiled by torch.compile")

    # Record
    test_every: int = setting(1, "epochs from test to test; the last epoch is always tested", at_least=1, whole=True)
    checkpoint_seconds: float = setting(60.0, "seconds between checkpoints within an epoch", at_least=0)
    tensorboard: bool = setting(False, "also write event files into the run folder")

    def __init__(self, **settings: Any) -> None:
        options = dict(settings.pop("options", {}))
        for name in _own_names():
            object.__setattr__(self, name, settings.pop(name, self.__dataclass_fields__[name].default))
        object.__setattr__(self, "options", options | settings)
        if self.start_from and isinstance(self.start_from, str):
            # One folder has one name, so that a resumed run may spell it with a slash at its end.
            object.__setattr__(self, "start_from", os.path.normpath(self.start_from))
        try:
            self._check()
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigError(str(error)) from error

    def __getattr__(self, name: str) -> Any:
        if name in NetworkOptions.names():
            return self.options.get(name)
        raise AttributeError(f"there is no setting {name!r}.")

    def __hash__(self) -> int:
        return hash(self.to_json())

    def _check(self) -> None:
        for name in self.options:
            _check_name(name)
        self.__post_init__()
        choose_options(self.preset, self.options)
        if self.schedule == "onecycle" and self.warmup >= 1:
            raise ValueError(f"with schedule='onecycle', warmup is a share of the run below 1; got {self.warmup}.")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0.")
        if self.max_norm and self.options.get("unit_norm"):
            raise ValueError(
                "max_norm does nothing beside unit_norm, which uses the atoms at norm 1; choose one of them."
            )
        if self.start_from == "":
            raise ValueError("start_from is empty; name a run's folder or a network, or leave it out.")
        if self.alternate_flip and not (self.flip and self.per_image):
            raise ValueError("alternate_flip needs flip and per_image.")  # as Augmentation says, before data is read

    def make_model(self, num_classes: int, in_channels: int, overrides: Mapping[str, Any] | None = None) -> "Network":
        """The network these settings describe, with the options in ``overrides`` changed."""
        from torchscn.models import MODELS

        options = choose_options(self.preset, self.options, overrides or {})
        return MODELS[self.model](num_classes, in_channels, options)

    def model_options(self) -> dict[str, Any]:
        """The options of :func:`torchscn.create_model` that are set, including the preset."""
        return ({} if self.preset is None else {"preset": self.preset}) | dict(self.options)

    def network(self) -> dict[str, Any]:
        """Model and options as JSON has them, to be kept with the weights they belong to."""
        table: dict[str, Any] = json.loads(json.dumps({"model": self.model} | self.model_options()))
        return table

    def flat(self) -> dict[str, Any]:
        """All settings in one table, including the options of the network that are set."""
        table = asdict(self)
        options: dict[str, Any] = table.pop("options")
        return table | options

    def changed_settings(self) -> dict[str, Any]:
        """The settings that differ from the defaults."""
        defaults = TrainConfig().flat()
        return {name: value for name, value in self.flat().items() if name not in defaults or value != defaults[name]}

    def make_augmentation(self) -> "Augmentation | None":
        """The augmentation of training batches, if any."""
        from torchscn.data import Augmentation

        if not (self.shift or self.flip or self.cutout):
            return None
        return Augmentation(self.shift, self.flip, self.cutout, self.per_image, self.alternate_flip)

    def override(self, settings: Mapping[str, Any]) -> "TrainConfig":
        """A copy with some settings changed; strings are converted to the setting's type.

        Raises:
            ConfigError: an unknown setting (the closest one is suggested) or a value of the wrong type.

        Example:
            >>> TrainConfig().override({"lr": "0.05", "flip": "true", "max-iter": "none"}).options
            {'max_iter': None}
        """
        named = {name.replace("-", "_"): value for name, value in settings.items()}
        values = {name: _convert(name, value) for name, value in named.items()}
        own = {name: value for name, value in values.items() if name in _OWN_TYPES}
        options = {name: value for name, value in values.items() if name not in _OWN_TYPES}
        return replace(self, **own, options={**self.options, **options})

    def to_json(self) -> str:
        """The settings as JSON text, as saved in a run folder."""
        written = {
            name: _NONE if value is None and name in self.options else value for name, value in self.flat().items()
        }
        return json.dumps(written, indent=2) + "\n"


def _own_names() -> list[str]:
    """The settings that are not options of the network."""
    return [name for name in TrainConfig.names() if name != "options"]


_OWN_TYPES: dict[str, Any] = {name: TrainConfig.__dataclass_fields__[name].type for name in _own_names()}
_TYPES: dict[str, Any] = typing.get_type_hints(NetworkOptions) | _OWN_TYPES


class SettingDescription(NamedTuple):
    """A setting, described for people."""

    group: str
    name: str
    default: str
    choices: str
    meaning: str


_GROUPS = {
    "data": "data",
    "model": "model",
    "epochs": "optimisation",
    "amp": "computation",
    "test_every": "record",
}


def describe_settings() -> list[SettingDescription]:
    """Every setting a recipe may contain, in groups.

    Example:
        >>> describe_settings()[0][:3]
        ('data', 'data', 'digits')
    """
    found: list[SettingDescription] = []
    group = ""
    for entry in fields(TrainConfig):
        group = _GROUPS.get(entry.name, group)
        entries = fields(NetworkOptions) if entry.name == "options" else (entry,)
        found += [_describe(group, one) for one in entries]
    return found


def _describe(group: str, entry: Any) -> SettingDescription:
    choices = entry.metadata["rule"].choices or (("true", "false") if isinstance(entry.default, bool) else ())
    return SettingDescription(group, entry.name, _as_text(entry.default), ", ".join(choices), entry.metadata["meaning"])


def _as_text(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None:
        return _NONE
    if isinstance(value, bool):
        return str(value).lower()
    return (
        ",".join(map(str, value))
        if isinstance(value, tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


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
        ConfigError: no such recipe (the closest one is suggested), or one that cannot be read.

    Example:
        >>> load_recipe("digits").data
        'digits'
    """
    path = Path(name) if name.endswith(".toml") else _recipe_folder() / f"{name}.toml"
    if not path.is_file():
        hint = did_you_mean(name, list_recipes())
        raise ConfigError(f"no recipe {name!r}.{hint} `scn recipes` lists them; a path ending in .toml works too.")
    try:
        settings = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a readable TOML file: {error}") from error
    try:
        return TrainConfig().override(settings)
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be used: {error}") from error


def read_config(path: Path) -> TrainConfig:
    """Settings saved by :meth:`TrainConfig.to_json`.

    Raises:
        ConfigError: the file is missing, or is not what it should be.
    """
    try:
        settings = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(f"{path.parent} is not a run folder: it has no {path.name}.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} must hold a table of settings, as {{...}}; it holds something else.")
    try:
        # A null is a setting that was not set; one that was set to None is written as a word.
        return TrainConfig().override({name: value for name, value in settings.items() if value is not None})
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be used: {error}") from error


def _recipe_folder() -> Path:
    return Path(str(resources.files("torchscn") / "recipes"))


def _check_name(name: str) -> None:
    if name not in _TYPES:
        raise ConfigError(f"there is no setting {name!r}.{did_you_mean(name, _TYPES)} `scn recipes` lists them.")


def _convert(name: str, value: Any) -> Any:
    """``value`` as the type of the setting ``name``."""
    _check_name(name)
    kind = _TYPES[name]
    if isinstance(kind, types.UnionType):
        if value is None or value == _NONE:
            return None
        kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
    try:
        return _as_type(kind, value)
    except (ValueError, TypeError, KeyError, OverflowError):
        readable = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        expected = readable.get(kind, "whole numbers, separated by commas")
        raise ConfigError(f"{name} takes {expected}; got {reprlib.repr(value)}.") from None


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
    if not isinstance(parts, (list, tuple)):
        raise TypeError
    return tuple(_as_type(int, part) for part in parts)
