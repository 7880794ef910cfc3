"""One pass of many images through a network: how every layer uses its atoms, and where."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from torchscn.certificates import spread_sample
from torchscn.checks import check_number
from torchscn.data import ImageSet
from torchscn.inspect.stages import Look, Stage, Window, dissect, look
from torchscn.network import Network

__all__ = ["BATCH", "LayerUse", "Places", "Progress", "Survey", "check_images", "some_images", "survey"]

BATCH = 64  # images looked at together

Progress = Callable[[int], None]
"""Called with the number of images (or layers) done so far."""


@dataclass(frozen=True)
class Places:
    """A few positions of every image, drawn at random: what the layer saw there and made of it."""

    patches: Tensor  # (positions, features), after the norm
    codes: Tensor  # (positions, width)
    labels: Tensor  # (positions,): the class of the image


@dataclass(frozen=True)
class LayerUse:
    """What a layer did with many images."""

    stage: Stage
    pooled: Tensor  # (images, width): codes averaged over positions
    largest: Tensor  # (images, width): the code of every atom in every image that is largest in absolute value
    place: Tensor  # (images, width): the position of that code, counted along the rows
    n_columns: int  # positions in a row
    usage: Tensor  # (width,): mean absolute value of the codes of every atom
    active: float  # share of codes that are not zero
    places: Places

    def is_dead(self) -> Tensor:
        """Which atoms no image uses."""
        return self.usage == 0


@dataclass(frozen=True)
class Survey:
    """What every layer did with the same images."""

    images: ImageSet
    layers: tuple[LayerUse, ...]


def some_images(images: ImageSet, n_images: int) -> ImageSet:
    """So many images spread evenly over a set, or all of them if there are fewer."""
    check_number("n_images", n_images, at_least=1, whole=True)
    return images.take(spread_sample(torch.arange(len(images)), n_images))


def survey(
    network: Network, images: ImageSet, *, places: int = 1, seed: int = 0, progress: Progress | None = None
) -> Survey:
    """Look at many images and remember, for every layer, which atoms they use and where.

    Args:
        network: a trained network.
        images: images of the size it was trained on; a few thousand are enough.
        places: positions of every image whose patches and codes are kept.
        seed: chooses these positions.
        progress: called with the number of images done so far.

    Example:
        >>> import torchscn
        >>> images = torchscn.data.load("digits", "test")
        >>> network = torchscn.create_model("scn1", in_channels=1)
        >>> network.remember(torchscn.data.Normalization.fit(images.images), images.classes, (8, 8))
        >>> survey(network, some_images(images, 20)).layers[0].pooled.shape
        torch.Size([20, 16])
    """
    check_images(network, images)
    check_number("places", places, at_least=1, whole=True)
    generator = torch.Generator().manual_seed(seed)
    found: list[list[LayerUse]] = [[] for _ in dissect(network).stages]
    for start in range(0, len(images), BATCH):
        x = network.preprocess(images.images[start : start + BATCH])
        labels = images.labels[start : start + BATCH]
        for uses, seen in zip(found, look(network, x), strict=True):
            uses.append(_use(seen, labels, places, generator))
        if progress is not None:
            progress(start + len(x))
    return Survey(images, tuple(map(_together, found)))


def check_images(network: Network, images: ImageSet) -> None:
    """Check that there are images, and that the network was trained on images and classes like these."""
    if network.classes is None or network.image_size is None:
        raise ValueError(
            "this network was not trained, so it has no classes; torchscn.load_trained returns one that has."
        )
    expected = (network.in_channels, *network.image_size)
    if not len(images) or tuple(images.images.shape[1:]) != expected:
        size = " x ".join(map(str, expected))
        raise ValueError(f"the network looks at images of {size}; got {images!r}.")
    if images.classes != network.classes:
        raise ValueError(
            f"the network knows {len(network.classes)} classes, and {images.name!r} has {len(images.classes)} others: "
            "is this the data it was trained on?"
        )


def _use(seen: Look, labels: Tensor, n_places: int, generator: torch.Generator) -> LayerUse:
    """What a layer did with one batch."""
    codes = seen.codes.flatten(2)
    place = codes.abs().argmax(2)
    largest = codes.gather(2, place[:, :, None])[..., 0]
    n_columns, n_positions = seen.codes.shape[3], codes.shape[2]
    chosen = torch.randint(n_positions, (len(codes), n_places), generator=generator)
    rows = torch.arange(len(codes))[:, None].expand_as(chosen).flatten()
    spots = chosen.flatten()
    places = Places(
        _patches(seen, rows, spots // n_columns, spots % n_columns).cpu(),
        codes[rows, :, spots].cpu(),
        labels[rows],
    )
    share = float((codes != 0).double().mean())
    usage = codes.abs().mean((0, 2)).cpu()
    return LayerUse(seen.stage, codes.mean(2).cpu(), largest.cpu(), place.cpu(), n_columns, usage, share, places)


def _patches(seen: Look, images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The patches at some positions, flattened."""
    window: Window = seen.stage.window
    padded = F.pad(seen.inputs, [window.padding] * 4)
    views = padded.unfold(2, window.span, window.stride).unfold(3, window.span, window.stride)
    step = window.dilation
    return views[images, :, rows, columns][..., ::step, ::step].flatten(1)


def _together(uses: list[LayerUse]) -> LayerUse:
    """The batches of one layer as one."""
    n_images = [len(use.pooled) for use in uses]
    shares = [n / sum(n_images) for n in n_images]
    places = Places(
        torch.cat([use.places.patches for use in uses]),
        torch.cat([use.places.codes for use in uses]),
        torch.cat([use.places.labels for use in uses]),
    )
    return LayerUse(
        uses[0].stage,
        torch.cat([use.pooled for use in uses]),
        torch.cat([use.largest for use in uses]),
        torch.cat([use.place for use in uses]),
        uses[0].n_columns,
        torch.stack([share * use.usage for use, share in zip(uses, shares, strict=True)]).sum(0),
        sum(share * use.active for use, share in zip(uses, shares, strict=True)),
        places,
    )
