"""A network taken apart: its layers one after the other, each with the norm before it and the pixels it sees."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchscn.checks import check_number
from torchscn.fusion import scale_and_offset
from torchscn.layers import SparseCoding2d
from torchscn.network import Network
from torchscn.tensors import laid_out

__all__ = ["Anatomy", "Field", "Look", "Stage", "Window", "check_atom", "check_layer", "dissect", "look", "undo_norm"]


class Window(NamedTuple):
    """How the patches of a layer lie, the same in both directions."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def span(self) -> int:
        """Pixels from the first to the last of a patch."""
        return self.dilation * (self.kernel - 1) + 1

    def n_positions(self, side: int) -> int:
        """The number of positions along a side of the input."""
        return (side + 2 * self.padding - self.span) // self.stride + 1


@dataclass(frozen=True)
class Field:
    """Which pixels a position of a layer depends on: position ``p`` sees ``size`` pixels from ``start + p * step``."""

    size: int = 1
    step: int = 1
    start: int = 0

    def through(self, window: Window) -> "Field":
        """The field of the positions of a layer whose inputs have this one."""
        return Field(
            self.size + (window.span - 1) * self.step,
            self.step * window.stride,
            self.start - window.padding * self.step,
        )

    def box(self, row: int, column: int) -> tuple[int, int, int, int]:
        """Top, left, bottom and right (past the end) of the pixels of a position; it may reach beyond the image."""
        top, left = self.start + row * self.step, self.start + column * self.step
        return top, left, top + self.size, left + self.size

    def middle(self, row: int, column: int) -> tuple[int, int, int, int]:
        """The same for the middle of these pixels, as many as lie between neighbouring positions."""
        top, left, *_ = self.box(row, column)
        inset = (self.size - self.step) // 2
        return top + inset, left + inset, top + inset + self.step, left + inset + self.step


@dataclass(frozen=True)
class Stage:
    """One layer of a network.

    Args:
        number: its place, from 1.
        name: what the network calls the module.
        norm: the batch norm between the codes of the layer before (or the image) and this layer, if there is one.
        layer: the sparse coding layer, or the convolution of a twin.
        window: where its patches are.
        field: which pixels one of its positions sees.
    """

    number: int
    name: str
    norm: nn.BatchNorm2d | None
    layer: SparseCoding2d | nn.Conv2d
    window: Window
    field: Field

    @property
    def is_sparse(self) -> bool:
        return isinstance(self.layer, SparseCoding2d)

    @property
    def width(self) -> int:
        """The number of atoms, or channels of a convolution."""
        return len(self.atoms())

    def atoms(self) -> Tensor:
        """The dictionary in use, or the filters of a convolution: ``(width, channels, height, width)``."""
        atoms = self.layer.atoms() if isinstance(self.layer, SparseCoding2d) else self.layer.weight
        return atoms.detach()

    def normalize(self, x: Tensor) -> Tensor:
        """What the layer gets: the codes of the layer before (or the image) after the norm, as in evaluation."""
        if self.norm is None:
            return x
        scale, offset = (value.detach() for value in scale_and_offset(self.norm))
        return x * scale[:, None, None] + offset[:, None, None]

    def code(self, x: Tensor) -> Tensor:
        """The codes of normalized input; of a convolution, what is left after its ReLU."""
        codes: Tensor = self.layer(x)
        return codes if self.is_sparse else codes.relu()


@dataclass(frozen=True)
class Anatomy:
    """The layers of a network, and what turns the codes of the last one into scores."""

    stages: tuple[Stage, ...]
    norm: nn.BatchNorm2d | None
    classifier: nn.Linear


@dataclass(frozen=True)
class Look:
    """What a layer got and made of it."""

    stage: Stage
    inputs: Tensor  # (images, channels, height, width), after the norm
    codes: Tensor  # (images, width, height', width')


def dissect(network: Network) -> Anatomy:
    """Take a network apart.

    Raises:
        TypeError: it is not a :class:`torchscn.Network`, has shortcuts, or modules that are not looked into.

    Example:
        >>> from torchscn import create_model
        >>> first, second, *_ = dissect(create_model("scn1")).stages
        >>> first.field, second.field
        (Field(size=3, step=1, start=-1), Field(size=5, step=1, start=-2))
    """
    if not isinstance(network, Network):
        raise TypeError(f"only a torchscn.Network can be inspected; got {type(network).__name__}.")
    if network.shortcuts:
        # Codes after a shortcut are a sum, and nothing in them says which part came which way.
        raise TypeError("a network with shortcuts is not looked into: only layers that follow one another are.")
    stages: list[Stage] = []
    norm: nn.BatchNorm2d | None = None
    field = Field()
    modules = list(_leaves(network))
    for (name, module), (_, following) in zip(modules, [*modules[1:], ("", None)], strict=True):
        if isinstance(module, nn.Conv2d) and not isinstance(following, nn.ReLU):
            raise TypeError(f"{name} is not followed by ReLU: only convolutions as Network makes them are looked into.")
        if isinstance(module, nn.BatchNorm2d) and norm is None:
            norm = module
        elif isinstance(module, (SparseCoding2d, nn.Conv2d)):
            window = _window(name, module)
            field = field.through(window)
            stages.append(Stage(len(stages) + 1, name, norm, module, window, field))
            norm = None
        elif not isinstance(module, (nn.ReLU, nn.Identity)):
            raise TypeError(f"{name} is a {type(module).__name__}: only the layers that Network makes are looked into.")
    return Anatomy(tuple(stages), norm, network.classifier)


def check_layer(network: Network, layer: int) -> Stage:
    """The layer of that number, counted from 1; an error says which there are."""
    stages = dissect(network).stages
    check_number("layer", layer, at_least=1, whole=True)
    if layer > len(stages):
        raise ValueError(f"layer must be from 1 to {len(stages)}, the layers of this network; got {layer}.")
    return stages[layer - 1]


def check_atom(stage: Stage, atom: int) -> None:
    """Check that a layer has an atom of this number, counted from 0."""
    check_number("atom", atom, at_least=0, whole=True)
    if atom >= stage.width:
        raise ValueError(f"layer {stage.number} has atoms 0 to {stage.width - 1}; got {atom}.")


def look(network: Network, x: Tensor, last: int | None = None) -> Iterator[Look]:
    """What every layer makes of images, one layer after the other; without gradients, as in evaluation.

    Args:
        network: the network.
        x: preprocessed images, see :meth:`torchscn.Network.preprocess`.
        last: number of the last layer to run; by default all are run.

    Example:
        >>> from torchscn import create_model
        >>> [look.codes.shape[1] for look in look(create_model("scn1"), torch.randn(1, 3, 32, 32), last=3)]
        [16, 16, 16]
    """
    stages = dissect(network).stages
    if not x.is_floating_point():
        raise TypeError(f"x must be preprocessed images, see Network.preprocess; got {x.dtype}.")
    x = laid_out(x, torch.channels_last)
    for stage in stages if last is None else stages[: check_layer(network, last).number]:
        with torch.no_grad():
            inputs = stage.normalize(x)
            x = stage.code(inputs)
        yield Look(stage, inputs, x)


def undo_norm(norm: nn.BatchNorm2d | None, x: Tensor, *, shift: bool = True) -> Tensor:
    """What had to enter a batch norm for ``x`` to come out; channels that it scaled to nothing are taken as their mean.

    Args:
        norm: the norm; None changes nothing.
        x: its output.
        shift: False undoes the scale alone, for differences.
    """
    if norm is None:
        return x
    scale, offset = (value.detach() for value in scale_and_offset(norm))
    factor = torch.where(scale == 0, torch.zeros_like(scale), 1 / scale)
    x = (x - offset[:, None, None] if shift else x) * factor[:, None, None]
    if shift and norm.running_mean is not None:
        x = torch.where((scale == 0)[:, None, None], norm.running_mean[:, None, None], x)
    return x


def _leaves(network: Network) -> Iterator[tuple[str, nn.Module]]:
    """The modules that do something, in the order in which they do it."""
    for name, module in network.blocks.named_modules(prefix="blocks"):
        if not isinstance(module, (nn.Sequential, nn.ModuleList)):
            yield name, module
    yield "norm", network.norm


def _window(name: str, layer: SparseCoding2d | nn.Conv2d) -> Window:
    sides = []
    for what in ("kernel_size", "stride", "padding", "dilation"):
        value = getattr(layer, what)
        if not isinstance(value, tuple) or len(set(value)) != 1:
            raise TypeError(f"only layers with square patches are looked into; {name} has {what} {value}.")
        sides.append(int(value[0]))
    return Window(*sides)
