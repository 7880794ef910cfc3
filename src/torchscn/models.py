"""Networks by name: those of the paper with their convolutional twins, trained ones, and your own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchscn.checks import Registry, check_choice, check_number
from torchscn.network import Network, Row
from torchscn.options import NetworkOptions, Options, accept_options, check_modules, choose_options
from torchscn.weights import TrainedWeights, load_pretrained

__all__ = ["MODELS", "ModelMaker", "create_model", "list_models", "register_model", "scn_table"]

ModelMaker = Callable[[int, int, NetworkOptions], Network]
"""Makes a network from the number of classes, the number of input channels, and options."""

MODELS: Registry[ModelMaker] = Registry("model")


def register_model(name: str) -> Callable[[ModelMaker], ModelMaker]:
    """Decorator: make a network usable as ``create_model(name)`` and in recipes as ``model = name``.

    Example:
        >>> @register_model("tiny")
        ... def tiny(num_classes, in_channels, options):
        ...     return Network([Row("sparse", 8), Row("sparse", 16, 2)], num_classes, in_channels, options)
        >>> create_model("tiny", num_classes=2, lam1=0.1).table[1].width
        16
        >>> _ = MODELS.pop("tiny")
    """
    return MODELS.register(name)


def list_models() -> list[str]:
    """Names usable in :func:`create_model`: the paper's networks and their convolutional twins.

    Example:
        >>> list_models()
        ['cnn1', 'cnn2', 'cnn4', 'scn1', 'scn2', 'scn4']
    """
    return sorted(MODELS)


@accept_options(NetworkOptions)
def create_model(
    name: str,
    num_classes: int | None = None,
    in_channels: int | None = None,
    pretrained: str | None = None,
    *,
    preset: str | None = None,
    **options: Any,
) -> Network:
    """A network by name: ``scn1``, ``scn2``, ``scn4`` of the paper, or ``cnn1``, ``cnn2``, ``cnn4``, their twins.

    A twin has the same shapes and norms, with ``Conv2d`` (with bias) and ``ReLU`` instead of every sparse coding layer.

    Args:
        name: one of :func:`list_models`; the digit is the paper's K.
        num_classes: number of classes; 10 by default.
        in_channels: channels of the images; 3 by default.
        pretrained: data set whose trained weights to load, one of those in :func:`torchscn.list_pretrained`. The
            weights determine classes, channels and shape; ``solver``, ``tol``, ``max_iter`` and ``grad`` may still be
            given. The network is in evaluation mode and has ``preprocess`` and ``classes``. Use
            :func:`torchscn.load_trained` to load networks you trained yourself.
        preset: ``"authors"`` or ``"text"``: set every option as in the authors' program or the paper's text. Options
            given here override the preset; another solver also resets what it chose for its own, see
            :meth:`torchscn.Options.change`.
        options: any of :class:`torchscn.NetworkOptions`: ``stem``, ``width``, ``order`` and ``downsample`` of the
            paper's table, ``norm``, ``affine`` and ``shortcuts``, penalties, initial values and solver of every sparse
            coding layer.

    Example:
        >>> model = create_model("scn1", num_classes=10)
        >>> sum(p.numel() for p in model.parameters())
        173896
    """
    make = MODELS[name]
    if pretrained is None:
        chosen = choose_options(preset, options)
        return make(10 if num_classes is None else num_classes, 3 if in_channels is None else in_channels, chosen)
    if preset is not None:
        options["preset"] = preset
    weights = load_pretrained(f"{name}-{pretrained}")
    _check_beside(weights, pretrained, options, num_classes, in_channels)
    own = dict(weights.about["options"])
    chosen = choose_options(own.pop("preset", None), own, options)
    model = make(weights.num_classes, weights.in_channels, chosen)
    model.adopt(weights, source=f"pretrained={pretrained!r}")
    return model.eval()


def _check_beside(
    weights: TrainedWeights, data: str, options: Mapping[str, Any], num_classes: int | None, in_channels: int | None
) -> None:
    """Check that the arguments match the trained weights: only the solver options are free."""
    clashes = [name for name in options if name not in Options.names()]
    if clashes:
        free = ", ".join(Options.names())
        raise ValueError(f"pretrained={data!r} brings its own {', '.join(clashes)}; only {free} may be given.")
    if num_classes not in (None, weights.num_classes):
        raise ValueError(
            f"pretrained={data!r} has {weights.num_classes} classes, not {num_classes}; for other classes "
            "leave num_classes out and replace model.classifier with a new nn.Linear."
        )
    if in_channels not in (None, weights.in_channels):
        raise ValueError(f"pretrained={data!r} takes images of {weights.in_channels} channels, not {in_channels}.")


_SECTIONS = (16, 16, 16, 32, 32, 64, 64)  # slim width of the paper's bottleneck modules, N_MODULES of them


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
        downsample: modules, 1 to 7, whose first layer has stride 2; each at most once.
        kind: ``"sparse"`` or ``"conv"``.

    Example:
        >>> scn_table(width=4)[:2]
        [Row(kind='sparse', width=16, stride=1), Row(kind='sparse', width=64, stride=1)]
    """
    check_choice("order", order, ("reduce_expand", "expand_reduce"))
    check_number("width", width, at_least=1, whole=True)
    check_number("stem", stem, at_least=1, whole=True)
    check_modules("downsample", downsample)
    rows = []
    for number, slim in enumerate(_SECTIONS, start=1):
        pair = [stem if number == 1 else slim, slim * width]
        first, second = pair if order == "reduce_expand" else pair[::-1]
        rows += [Row(kind, first, 2 if number in downsample else 1), Row(kind, second)]
    return rows


def _paper_network(kind: str, width: int) -> ModelMaker:
    """SCN-``width`` of the paper, or its twin."""

    def make(num_classes: int, in_channels: int, options: NetworkOptions) -> Network:
        table = scn_table(
            options.width or width, stem=options.stem, order=options.order, downsample=options.downsample, kind=kind
        )
        return Network(table, num_classes, in_channels, options)

    return make


for _width in (1, 2, 4):
    register_model(f"scn{_width}")(_paper_network("sparse", _width))
    register_model(f"cnn{_width}")(_paper_network("conv", _width))
