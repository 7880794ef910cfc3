"""Back from codes to pixels, down through the dictionaries.

A sparse coding layer has an inverse of its own: its codes say how to rebuild every patch from atoms. Patches overlap,
so every pixel takes the average of the patches that cover it. That, and the batch norms undone, layer by layer, leads
from the codes of any layer to an image. A convolution followed by ReLU has no such inverse.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from torchscn.inspect.stages import Stage, Window, check_atom, check_layer, dissect, look, undo_norm
from torchscn.network import Network

__all__ = ["NoInverseError", "Rebuilt", "rebuild", "rebuild_all", "rebuild_inputs", "synthesize", "to_pixels"]

PIECE = 16  # atoms synthesised together


class NoInverseError(TypeError):
    """Codes of a convolution, which has no inverse of its own."""


@dataclass(frozen=True)
class Rebuilt:
    """Images rebuilt from the codes of one layer."""

    stage: Stage
    images: Tensor  # normalized, like the input of the network
    own: Tensor  # what is particular to each image: the difference from what the mean codes of all of them rebuild
    error: Tensor  # (images,): distance from the original, relative to the norm of that
    likeness: Tensor  # (images,): correlation of ``own`` with the original's difference from the mean image
    active: Tensor  # (images,): active atoms per position


def rebuild_all(network: Network, x: Tensor) -> list[Rebuilt]:
    """Preprocessed images, rebuilt from the codes of every layer.

    Args:
        network: the network.
        x: some dozens of images, so that what they have in common is not what is particular to one of them.

    Raises:
        NoInverseError: a layer is a convolution.
    """
    rebuilt = []
    size = (x.shape[2], x.shape[3])
    for seen in look(network, x):
        codes, layer = seen.codes, seen.stage.number
        images = rebuild(network, codes, layer, size)
        # Not as a difference of rebuilt images: those of deep layers differ by less than rounding.
        own = rebuild(network, codes - codes.mean(0), layer, size, differences=True)
        error = (images - x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
        likeness = _correlation((x - x.mean(0)).flatten(1), own.flatten(1))
        active = (codes != 0).sum(1).double().mean((1, 2))
        rebuilt.append(Rebuilt(seen.stage, images, own, error, likeness, active))
    return rebuilt


def rebuild(
    network: Network, codes: Tensor, layer: int, size: tuple[int, int] | None = None, *, differences: bool = False
) -> Tensor:
    """The images that codes of a layer stand for.

    Args:
        network: the network.
        codes: ``(images, width of the layer, height, width)``.
        layer: number of the layer, from 1.
        size: height and width of the images; by default those that the network was trained on.
        differences: the codes are differences of codes, so differences of images are returned: no means are added.

    Returns:
        Normalized images, like the input of the network; :func:`to_pixels` makes pixels of them.

    Raises:
        NoInverseError: a layer on the way down is a convolution.

    Example:
        >>> from torchscn import create_model
        >>> from torchscn.inspect import look
        >>> network, x = create_model("scn1"), torch.randn(2, 3, 32, 32)
        >>> *_, third = look(network, x, last=3)
        >>> rebuild(network, third.codes, 3, size=(32, 32)).shape
        torch.Size([2, 3, 32, 32])
    """
    stages = dissect(network).stages[: check_layer(network, layer).number]
    size = size or network.image_size
    if size is None:
        raise ValueError("this network was not trained, so it does not know the size of images; give size=.")
    sizes = _sizes(stages, size)
    expected = (stages[-1].width, *sizes[-1])
    if codes.dim() != 4 or tuple(codes.shape[1:]) != expected:
        raise ValueError(
            f"codes of layer {layer} have the shape (images, {', '.join(map(str, expected))}) for images of "
            f"{size[0]} x {size[1]}; got {tuple(codes.shape)}."
        )
    for stage, below in zip(reversed(stages), reversed(sizes[:-1]), strict=True):
        codes = undo_norm(stage.norm, rebuild_inputs(stage, codes, below), shift=not differences)
    return codes


def rebuild_inputs(stage: Stage, codes: Tensor, size: tuple[int, int]) -> Tensor:
    """The input of one layer (after its norm) rebuilt from its codes: patches that cover a pixel are averaged.

    Args:
        stage: the layer, from :func:`dissect`.
        codes: its codes.
        size: height and width of its input.
    """
    padding = _sparse(stage).window.padding
    ones = codes.new_ones(1, 1, *codes.shape[2:])
    with torch.no_grad():
        total = _spread(stage.window, codes, stage.atoms(), padding, size)
        return total / _cover(stage.window, ones, padding, size)


def synthesize(network: Network, layer: int, atoms: Sequence[int] | None = None) -> Tensor:
    """What atoms of a layer stand for in pixels: the change of the image that a code of 1 at one position describes.

    The same steps as in :func:`rebuild`, for one code alone: no means are added.

    Args:
        network: the network.
        layer: number of the layer, from 1.
        atoms: which atoms; all by default.

    Returns:
        ``(atoms, channels, size, size)`` with the size of the layer's receptive field; positive is brighter.

    Example:
        >>> from torchscn import create_model
        >>> synthesize(create_model("scn1"), 3).shape
        torch.Size([16, 3, 7, 7])
    """
    last = check_layer(network, layer)
    stages = dissect(network).stages[:layer]
    chosen = list(range(last.width)) if atoms is None else list(atoms)
    for atom in chosen:
        check_atom(last, atom)
    eye = torch.eye(last.width).to(last.atoms())[chosen, :, None, None]
    made = [_synthesize(stages, piece) for piece in eye.split(PIECE)]
    return torch.cat(made) if made else eye.new_empty(0, network.in_channels, last.field.size, last.field.size)


def to_pixels(network: Network, x: Tensor) -> Tensor:
    """Normalized images as pixels from 0 to 1, what is outside cut off."""
    if network.normalization is None:
        raise ValueError("this network was not trained, so it does not know how images were normalized.")
    mean, std = network.normalization.mean.to(x), network.normalization.std.to(x)
    return (x * std + mean).clamp(0, 1)


def _correlation(one: Tensor, other: Tensor) -> Tensor:
    """Of the rows of two matrices; 0 where one of them is constant."""
    one, other = (rows - rows.mean(1, keepdim=True) for rows in (one, other))
    tiny = torch.finfo(one.dtype).tiny
    cosine: Tensor = (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1)).clamp(min=tiny)
    return cosine


def _synthesize(stages: Sequence[Stage], codes: Tensor) -> Tensor:
    """One position grows to its receptive field: a part of an image without borders."""
    for stage in reversed(stages):
        window = _sparse(stage).window
        with torch.no_grad():
            total = _spread(window, codes, stage.atoms())
            # Positions around those of the codes cover its pixels as well.
            margin = window.span
            cover = _cover(window, codes.new_ones(1, 1, *(side + 2 * margin for side in codes.shape[2:])))
            edge = margin * window.stride
            inside = cover[..., edge : edge + total.shape[2], edge : edge + total.shape[3]]
            codes = undo_norm(stage.norm, total / inside, shift=False)
    return codes


def _spread(
    window: Window, codes: Tensor, atoms: Tensor, padding: int = 0, size: tuple[int, int] | None = None
) -> Tensor:
    """The sum of all patches, each atom times its code laid where its patch is; all of it, or an image of a size."""
    smallest = [(n - 1) * window.stride - 2 * padding + window.span for n in codes.shape[2:]]
    extra = [0, 0] if size is None else [side - least for side, least in zip(size, smallest, strict=True)]
    return F.conv_transpose2d(codes, atoms, None, window.stride, padding, extra, 1, window.dilation)


def _cover(window: Window, ones: Tensor, padding: int = 0, size: tuple[int, int] | None = None) -> Tensor:
    """How many patches cover every pixel, at least 1."""
    patch = ones.new_ones(1, 1, window.kernel, window.kernel)
    return _spread(window, ones, patch, padding, size).clamp(min=1)


def _sizes(stages: Sequence[Stage], size: tuple[int, int]) -> list[tuple[int, int]]:
    """Height and width of the image and of the codes of every layer."""
    sizes = [size]
    for stage in stages:
        height, width = sizes[-1]
        sizes.append((stage.window.n_positions(height), stage.window.n_positions(width)))
    return sizes


def _sparse(stage: Stage) -> Stage:
    if not stage.is_sparse:
        raise NoInverseError(f"layer {stage.number} is a convolution, which has no inverse of its own.")
    return stage
