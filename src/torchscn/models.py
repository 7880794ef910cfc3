"""The networks of the paper by name: their tables, the presets, and trained ones."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import fields
from typing import Any

from torchscn import checks
from torchscn.network import LayerOptions, Network, Row, adopt
from torchscn.weights import load_pretrained

__all__ = ["PRESETS", "create_model", "list_models", "scn_table"]

# Where the paper's text and its authors' program differ; None of these is the default as a whole (see docs/paper.md).
PRESETS: dict[str, dict[str, Any]] = {
    "authors": {
        "order": "reduce_expand",
        "downsample": (4, 6),
        "norm": "before",
        "init": "small",
        "lam2": 1e-6,
        "solver": "fista",
        "tol": 0.0,
        "max_iter": 50,
    },
    "text": {
        "order": "expand_reduce",
        "downsample": (6, 7),
        "norm": "after",
        "init": "unit",
        "lam2": 1e-3,
        "solver": "fista",
        "tol": 1e-3,
        "max_iter": None,
    },
}

_SECTIONS = (16, 16, 16, 32, 32, 64, 64)  # slim width of the paper's seven bottleneck modules
_NAME = re.compile(r"(scn|cnn)([124])")


def scn_table(
    width: int = 1,
    *,
    stem: int = 16,
    order: str = "reduce_expand",
    downsample: Sequence[int] = (4, 6),
    kind: str = "sparse",
) -> list[Row]:
    """The paper's network as a table: seven bottleneck modules of a slim and a wide layer.

    Args:
        width: the paper's K: wide layers have K times the atoms of slim ones.
        stem: width of the first slim layer (the paper uses 8 on MNIST).
        order: ``"reduce_expand"`` (slim, then wide) or ``"expand_reduce"``.
        downsample: modules, counted from 1, whose first layer has stride 2.
        kind: ``"sparse"`` or ``"conv"``.

    Example:
        >>> scn_table(width=4)[:2]
        [Row(kind='sparse', width=16, stride=1), Row(kind='sparse', width=64, stride=1)]
    """
    checks.check_choice("order", order, ("reduce_expand", "expand_reduce"))
    checks.check_number("width", width, at_least=1, whole=True)
    checks.check_number("stem", stem, at_least=1, whole=True)
    rows = []
    for number, slim in enumerate(_SECTIONS, start=1):
        pair = [stem if number == 1 else slim, slim * width]
        first, second = pair if order == "reduce_expand" else pair[::-1]
        rows += [Row(kind, first, 2 if number in downsample else 1), Row(kind, second)]
    return rows


def list_models() -> list[str]:
    """Names usable in :func:`create_model`: the paper's networks and their convolutional twins.

    Example:
        >>> list_models()
        ['cnn1', 'cnn2', 'cnn4', 'scn1', 'scn2', 'scn4']
    """
    return [family + width for family in ("cnn", "scn") for width in "124"]


def create_model(
    name: str,
    num_classes: int = 10,
    in_channels: int = 3,
    pretrained: str | None = None,
    *,
    preset: str | None = None,
    stem: int | None = None,
    width: int | None = None,
    order: str | None = None,
    downsample: Sequence[int] | None = None,
    norm: str | None = None,
    affine: bool | None = None,
    lam1: float | None = None,
    lam2: float | None = None,
    per_atom: bool | None = None,
    learn_lam1: bool | None = None,
    unit_norm: bool | None = None,
    init: str | None = None,
    solver: str | None = None,
    tol: float | None = None,
    max_iter: int | None = None,
    grad: str | None = None,
) -> Network:
    """A network by name: ``scn1``, ``scn2``, ``scn4`` of the paper, or ``cnn1``, ``cnn2``, ``cnn4``, their twins.

    A twin has the same shapes and norms with ``Conv2d`` (with bias) and ``ReLU`` in place of every sparse coding layer.

    Args:
        name: one of :func:`list_models`; the digit is the paper's K.
        num_classes: number of classes.
        in_channels: channels of the images.
        pretrained: data set whose trained weights to load, of those in :func:`torchscn.list_pretrained`. They bring
            their own classes, channels and shape; ``solver``, ``tol``, ``max_iter`` and ``grad`` may be given beside
            them. The network is in evaluation mode and knows its ``preprocess`` and ``classes``. Networks of your own
            are loaded with :func:`torchscn.training.load_trained`.
        preset: ``"authors"`` or ``"text"`` choose every option as the authors' program or the paper's text has it;
            options given here go before it. Its ``tol`` and ``max_iter`` belong to its solver: they fall away beside
            another ``solver``, and its ``max_iter`` beside another ``tol``.
        stem: width of the first slim layer, 16 unless given (the paper uses 8 on MNIST).
        width: another K.
        order: ``"reduce_expand"`` or ``"expand_reduce"``.
        downsample: modules, counted from 1, whose first layer has stride 2.
        norm, affine, lam1, lam2, per_atom, learn_lam1, unit_norm, init, solver, tol, max_iter, grad: see
            :class:`LayerOptions`.

    Example:
        >>> model = create_model("scn1", num_classes=10)
        >>> sum(p.numel() for p in model.parameters())
        173896
    """
    checks.check_choice("model", name, list_models())
    if preset is not None:
        checks.check_choice("preset", preset, PRESETS)
    options = {key: value for key, value in dict(locals()).items() if key in _OPTIONS and value is not None}
    if pretrained is not None:
        return _load_pretrained(name, pretrained, num_classes, in_channels, preset, options)
    return _build(name, num_classes, in_channels, resolve_options(preset, options))


_TABLE_OPTIONS = ("stem", "order", "downsample")
_LAYER_OPTIONS = tuple(field.name for field in fields(LayerOptions))
_SOLVER_OPTIONS = ("solver", "tol", "max_iter", "grad")
_OPTIONS = ("width", *_TABLE_OPTIONS, *_LAYER_OPTIONS)


def resolve_options(preset: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a preset with those given in their place.

    Example:
        >>> resolve_options("authors", {"solver": "auto", "lam2": 0.1})["lam2"]
        0.1
    """
    chosen = PRESETS.get(preset or "", {})
    return _without(chosen, outdated_by(chosen, options)) | dict(options)


def outdated_by(chosen: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """The options chosen earlier that mean nothing beside those given now: they belonged to another solver or tol.

    Example:
        >>> outdated_by({"tol": 0.0, "max_iter": 50}, {"tol": 1e-5})
        ('max_iter',)
    """
    before = vars(LayerOptions()) | dict(chosen)
    after = before | dict(given)
    if after["solver"] != before["solver"]:
        return ("tol", "max_iter", "grad")
    return ("max_iter",) if after["tol"] != before["tol"] else ()


def _without(options: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in names}


def _build(name: str, num_classes: int, in_channels: int, options: dict[str, Any]) -> Network:
    """The network of that name with other options in the place of the defaults."""
    match = _NAME.fullmatch(name)
    assert match is not None
    family, digit = match.groups()
    table_options = {key: options[key] for key in _TABLE_OPTIONS if key in options}
    table = scn_table(options.get("width", int(digit)), kind="sparse" if family == "scn" else "conv", **table_options)
    layer_options = LayerOptions(**{key: options[key] for key in _LAYER_OPTIONS if key in options})
    return Network(table, num_classes, in_channels, layer_options)


def _load_pretrained(
    name: str, data: str, num_classes: int, in_channels: int, preset: str | None, options: dict[str, Any]
) -> Network:
    """The network of that name with weights of the package; what is asked for beside them must go with them."""
    weights = load_pretrained(f"{name}-{data}")
    clashes = [key for key in options if key not in _SOLVER_OPTIONS] + (["preset"] if preset else [])
    if clashes:
        raise ValueError(
            f"pretrained={data!r} brings its own {', '.join(clashes)}; only {', '.join(_SOLVER_OPTIONS)} may be given."
        )
    own_classes, own_channels = len(weights.about["classes"]), len(weights.normalization["mean"])
    # The defaults cannot be told from a wish for them, so they give way.
    if num_classes not in (10, own_classes):
        raise ValueError(
            f"pretrained={data!r} tells {own_classes} classes apart, not {num_classes}; for other classes leave "
            "num_classes out and put a new nn.Linear in the place of model.classifier."
        )
    if in_channels not in (3, own_channels):
        raise ValueError(f"pretrained={data!r} takes images of {own_channels} channels, not {in_channels}.")
    own = dict(weights.about["options"])
    own_preset = own.pop("preset", None)
    own = _without(own, outdated_by(resolve_options(own_preset, own), options)) | options
    model = _build(name, own_classes, own_channels, resolve_options(own_preset, own))
    adopt(model, weights, source=f"pretrained={data!r}")
    return model.eval()
