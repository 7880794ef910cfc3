"""A network from a table of layers.

A table is a list of :class:`Row` (kind, width, stride). The kind is ``"sparse"`` (a
:class:`~torchscn.SparseCoding2d`) or ``"conv"`` (a convolution with bias and ReLU), so the convolutional twin of a
network is the same table with the other kind, and your own tables may mix them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchscn.checks import check_choice, check_number
from torchscn.data import Normalization
from torchscn.fusion import can_fuse, run_fused
from torchscn.layers import SparseCoding2d
from torchscn.options import LayerOptions
from torchscn.shortcuts import make_shortcut
from torchscn.tensors import laid_out
from torchscn.weights import TrainedWeights, fill_model

__all__ = ["Bottleneck", "CodingBlock", "Network", "Row"]


class Row(NamedTuple):
    """One layer of a network: its kind, its number of output channels and its stride."""

    kind: str  # "sparse" or "conv"
    width: int
    stride: int = 1


class CodingBlock(nn.Sequential):
    """One row of a table: a layer with the batch norm that belongs to it."""

    def __init__(self, in_channels: int, row: Row, options: LayerOptions):
        layer = _make_layer(in_channels, row, options)
        if options.norm == "before":
            super().__init__(_norm(in_channels, options), *layer)
        else:
            super().__init__(*layer, _norm(row.width, options))


class Bottleneck(nn.Sequential):
    """One slim and one wide layer: the slim dictionary clusters, the wide one discriminates.

    Args:
        in_channels: channels of the input.
        reduce: width of the slim layer.
        expand: width of the wide layer.
        stride: stride of the first of the two.
        order: ``"reduce_expand"`` or ``"expand_reduce"``.
        kind: ``"sparse"``, or ``"conv"`` for the convolutional twin.
        options: norm, shortcut, penalties and solver, see :class:`LayerOptions`.

    Attributes:
        shortcut: what makes of the input what is added to the output, or None.

    Example:
        >>> Bottleneck(3, 16, 64)(torch.randn(2, 3, 8, 8)).shape
        torch.Size([2, 64, 8, 8])
    """

    def __init__(
        self,
        in_channels: int,
        reduce: int,
        expand: int,
        *,
        stride: int = 1,
        order: str = "reduce_expand",
        kind: str = "sparse",
        options: LayerOptions | None = None,
    ):
        check_choice("order", order, ("reduce_expand", "expand_reduce"))
        options = options or LayerOptions()
        first, second = (reduce, expand) if order == "reduce_expand" else (expand, reduce)
        rows = [Row(kind, first, stride), Row(kind, second)]
        super().__init__(*_make_blocks(in_channels, rows, options))
        self.shortcut: nn.Module | None = None
        if options.shortcuts != "none":
            self.shortcut = make_shortcut(options.shortcuts, in_channels, second, stride)

    def forward(self, x: Tensor) -> Tensor:
        if self.shortcut is None:
            return _run(self, x)
        added: Tensor = self.shortcut(x)
        return _run((self[0], self[1]), x) + added


class Network(nn.Module):
    """Layers from a table, global average pooling and a linear classifier.

    Args:
        table: rows ``(kind, width, stride)``.
        num_classes: outputs of the classifier.
        in_channels: channels of the images.
        options: norm, shortcuts, penalties and solver, see :class:`LayerOptions`.

    Attributes:
        blocks: one :class:`CodingBlock` per row; with shortcuts a list, which cannot be called as a whole.
        shortcuts: the shortcuts around modules, by the number of the module, from 1. A module is two rows. With
            ``"pooled"`` the first has none.
        classes: names of the classes; None if the network was not trained.
        image_size: height and width of the images it was trained on, or None.
        normalization: how :meth:`preprocess` normalizes images, or None.

    Shape:
        - Input: ``(batch, in_channels, height, width)``
        - Output: ``(batch, num_classes)``

    Example:
        >>> net = Network([Row("sparse", 8), Row("conv", 16, 2)], num_classes=5)
        >>> net(torch.randn(2, 3, 12, 12)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        table: Iterable[Row | tuple[str, int, int]],
        num_classes: int = 10,
        in_channels: int = 3,
        options: LayerOptions | None = None,
    ):
        super().__init__()
        options = options or LayerOptions()
        if not isinstance(options, LayerOptions):
            raise TypeError(f"options must be torchscn.LayerOptions; got {type(options).__name__}.")
        self.table = [Row(*row) for row in table]
        if not self.table:
            raise ValueError("the table of layers is empty; give at least one row (kind, width, stride).")
        check_number("num_classes", num_classes, at_least=1, whole=True)
        check_number("in_channels", in_channels, at_least=1, whole=True)
        self.num_classes, self.in_channels = num_classes, in_channels
        self.classes: tuple[str, ...] | None = None
        self.image_size: tuple[int, int] | None = None
        self.normalization: Normalization | None = None
        blocks = _make_blocks(in_channels, self.table, options)
        self.blocks = nn.Sequential(*blocks) if options.shortcuts == "none" else nn.ModuleList(blocks)
        last = self.table[-1].width
        self.norm = _norm(last, options) if options.norm == "before" else nn.Identity()
        self.classifier = nn.Linear(last, num_classes)
        nn.init.normal_(self.classifier.weight, std=1 / last)
        nn.init.zeros_(self.classifier.bias)
        # Last, so that a seed gives the layers the same weights with and without shortcuts.
        self.shortcuts = nn.ModuleDict(_make_shortcuts(in_channels, self.table, options.shortcuts))

    def forward(self, x: Tensor) -> Tensor:
        self._check_input(x)
        x = laid_out(x, torch.channels_last)
        plain = all(type(block) is CodingBlock for block in self.blocks)
        fused = plain and can_fuse(x, self, self.blocks, *self.blocks)
        if isinstance(self.blocks, nn.ModuleList):
            x = self.norm(self._run_with_shortcuts(x, fused))
        elif fused:
            x = run_fused([*_layers(self.blocks), self.norm], x)
        else:
            x = self.norm(self.blocks(x))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits

    def _run_with_shortcuts(self, x: Tensor, fused: bool) -> Tensor:
        """The output of the last module; one pass can take a layer and its norm only where no shortcut ends between."""
        blocks = list(self.blocks)
        for start in range(0, len(blocks), 2):
            module = blocks[start : start + 2]
            codes = run_fused(_layers(module), x) if fused else _run(module, x)
            x = self._add_shortcut(start // 2 + 1, x, codes)
        return x

    def _add_shortcut(self, number: int, x: Tensor, codes: Tensor) -> Tensor:
        """The output of a module from its input and what its layers made of that."""
        key = str(number)
        return codes + self.shortcuts[key](x) if key in self.shortcuts else codes

    def remember(self, normalization: Normalization, classes: Sequence[str], image_size: tuple[int, int]) -> None:
        """Remember what the network was trained on, for :meth:`preprocess` and to name its answers."""
        self.normalization = normalization
        self.classes, self.image_size = tuple(classes), image_size

    def adopt(self, weights: TrainedWeights, source: str) -> None:
        """Load trained weights, preprocessing and classes; errors name the ``source``."""
        fill_model(self, weights.model, source)
        height, width = weights.about["image_size"]
        self.remember(Normalization.from_state(weights.normalization), weights.about["classes"], (height, width))

    def preprocess(self, images: Tensor) -> Tensor:
        """Images normalized as in training and moved to the network's device: the input of :meth:`forward`.

        Args:
            images: uint8 ``(batch, in_channels, height, width)``, preferably of size ``self.image_size``.

        Raises:
            RuntimeError: the network was not trained, so its preprocessing is not known.

        Example:
            >>> from torchscn import create_model
            >>> model = create_model("scn4", pretrained="mnist")
            >>> model.preprocess(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).shape
            torch.Size([2, 1, 28, 28])
        """
        if self.normalization is None:
            raise RuntimeError(
                "this network was not trained, so it does not know its preprocessing; create_model(..., "
                "pretrained=...) and torchscn.load_trained return networks that do."
            )
        self._check_input(images)
        return self.normalization(images.cpu()).to(self.classifier.weight)

    def forward_features(self, x: Tensor) -> list[Tensor]:
        """The output of every row of the table, in order: the codes of every sparse coding layer.

        Shortcuts are added after these. A block that you replaced with another module contributes its output.
        """
        self._check_input(x)
        features = []
        x = entered = laid_out(x, torch.channels_last)
        for number, block in enumerate(self.blocks, start=1):
            for module in block.children() if type(block) is CodingBlock else [block]:
                x = module(x)
                if module is block or isinstance(module, (SparseCoding2d, nn.ReLU)):
                    features.append(x)
            if number % 2 == 0:
                x = entered = self._add_shortcut(number // 2, entered, x)
        return features

    def sparse_layers(self) -> list[tuple[str, SparseCoding2d]]:
        """The sparse coding layers with their names, in order."""
        return [(name, module) for name, module in self.named_modules() if isinstance(module, SparseCoding2d)]

    def _check_input(self, x: Tensor) -> None:
        if x.dim() != 4 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"the network takes images of shape (batch, {self.in_channels}, height, width); got {tuple(x.shape)}. "
                "Grey images need in_channels=1, colour ones 3."
            )
        smallest = 1
        for row in self.table:
            smallest *= row.stride
        if min(x.shape[2:]) < smallest:
            raise ValueError(
                f"images of {x.shape[2]} x {x.shape[3]} pixels are too small: the strides of this network reduce "
                f"{smallest} x {smallest} pixels to one."
            )


def _make_blocks(in_channels: int, table: Sequence[Row], options: LayerOptions) -> list[CodingBlock]:
    """One block per row, each taking the output of the one before."""
    inputs = [in_channels, *(row.width for row in table[:-1])]
    return [CodingBlock(n, row, options) for n, row in zip(inputs, table, strict=True)]


def _make_shortcuts(in_channels: int, table: Sequence[Row], kind: str) -> dict[str, nn.Module]:
    """The shortcut around every two rows, by the number of this module."""
    if kind == "none":
        return {}
    if len(table) % 2:
        raise ValueError(
            f"shortcuts={kind!r} go around modules of two rows each; this table has {len(table)} "
            "row(s). Add or remove one, or use shortcuts='none'."
        )
    made: dict[str, nn.Module] = {}
    for number, (first, second) in enumerate(zip(table[::2], table[1::2], strict=True), start=1):
        # The first module gets an image, whose few channels would be added to the codes of as many atoms, none of which
        # has anything to do with them; a projection learns where they belong.
        if number > 1 or kind == "projected":
            made[str(number)] = make_shortcut(kind, in_channels, second.width, first.stride * second.stride)
        in_channels = second.width
    return made


def _layers(blocks: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules of blocks in the order in which they are called."""
    return [module for block in blocks for module in block.children()]


def _run(modules: Iterable[nn.Module], x: Tensor) -> Tensor:
    for module in modules:
        x = module(x)
    return x


def _norm(channels: int, options: LayerOptions) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-4, momentum=0.1, affine=options.affine)


def _make_layer(in_channels: int, row: Row, options: LayerOptions) -> list[nn.Module]:
    check_choice("kind", row.kind, ("sparse", "conv"))
    if row.kind == "conv":
        convolution = nn.Conv2d(in_channels, row.width, 3, row.stride, padding=1)
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
        return [convolution, nn.ReLU()]
    return [SparseCoding2d(in_channels, row.width, 3, row.stride, options=options)]
