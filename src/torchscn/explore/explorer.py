"""What the page asks about a network: its layers, what they make of an image, and what their atoms look like."""

import math
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchscn.data import decode_image
from torchscn.explore.drawing import center_drawing, choose_frame
from torchscn.explore.examples import find_examples
from torchscn.explore.fields import Fields, RequestError, pack
from torchscn.explore.penalty import changed_lam1, vanishing_lam1
from torchscn.explore.rebuilding import match_contrast, rebuild_structure
from torchscn.functional import certify_codes, code
from torchscn.inspect.inverse import synthesize, to_pixels
from torchscn.inspect.stages import Stage, check_layer, dissect
from torchscn.layers import SparseCoding2d
from torchscn.problem import Solution
from torchscn.training.run_folder import TrainedModel

__all__ = ["Explorer", "RequestError"]

CANVAS = 280  # height and width of a drawing in pixels
MOST_PICTURES = 32  # of atoms in one request, which keeps others waiting
LARGEST_LAM1 = 1e12
TOLERANCES = (1e-8, 1.0)

_ABOUT_CODES = ("residual", "converged", "iterations", "lam1", "lam1_trained", "lam1_max")


@dataclass(frozen=True)
class Wish:
    """What to look at, and how."""

    pixels: Tensor  # uint8 (channels, height, width)
    stage: Stage
    lam1: float | None  # of that layer; None for the trained one
    tol: float | None  # of all layers; None for the trained one
    noise: float  # standard deviation, white being 1
    seed: int


class Explorer:
    """Answers the questions of the page about one trained network.

    It remembers nothing about who asks: every request holds all that is needed to answer it. The network is not
    changed, penalties and tolerances are handed to the solver beside it.

    Args:
        trained: the network.
        name: what to call it.
        data_dir: where to look for example images; by default the environment variable ``TORCHSCN_DATA``.
        layer: the layer to show first.

    Raises:
        ValueError: the network was not trained, takes images that are neither grey nor coloured, or has no such layer.

    Example:
        >>> from torchscn import load_trained
        >>> explorer = Explorer(load_trained("scn4-mnist"), name="scn4-mnist")
        >>> black = torch.zeros(1, 28, 28, dtype=torch.uint8)
        >>> answer = explorer.look({"pixels": pack(black), "layer": 2})
        >>> answer["shape"], len(answer["shares"])
        ([64, 28, 28], 10)
    """

    def __init__(
        self, trained: TrainedModel, *, name: str = "network", data_dir: str | Path | None = None, layer: int = 1
    ):
        network = trained.model
        if network.classes is None or network.image_size is None or network.normalization is None:
            raise ValueError("this network was not trained, so it does not know its classes and the size of images.")
        if network.in_channels not in (1, 3):
            raise ValueError(
                f"only networks for grey or colour images can be explored; got {network.in_channels} channels."
            )
        self._first = check_layer(network, layer).number
        self._anatomy = dissect(network)
        self._network, self._trained, self._name = network.eval(), trained, name
        self._classes: tuple[str, ...] = network.classes
        self._size: tuple[int, int] = network.image_size
        self._frame = choose_frame(trained.config.data, self._size)
        self._examples = find_examples(trained.config.data, network, data_dir)
        self._lock = threading.Lock()  # several answers at once would only slow each other down

    def describe(self) -> dict[str, Any]:
        """What the page needs to know at the start."""
        return {
            "name": self._name,
            "data": self._trained.config.data,
            "note": self._trained.note,
            "classes": self._classes,
            "channels": self._network.in_channels,
            "size": self._size,
            "canvas": CANVAS if self._network.in_channels == 1 else None,
            "layer": self._first,
            "layers": [self._describe_layer(stage) for stage in self._anatomy.stages],
            "examples": [{"pixels": pack(pixels), "label": label} for pixels, label in self._examples],
            "most_pictures": MOST_PICTURES,
        }

    def look(self, request: object) -> dict[str, Any]:
        """What the network makes of an image.

        Args:
            request: an object with the fields ``layer``; ``pixels`` (bytes of an image of the network's size, channels
                first) or ``drawing`` (bytes of a square canvas, ink bright); and, where they are changed, ``lam1``
                of the layer, ``tol`` of all layers, ``noise`` and its ``seed``.

        Returns:
            ``shares`` of the classes; the ``input`` and what is ``seen`` of it with noise; ``codes`` of the layer and
            their ``shape``; how well they were solved (``residual``, ``converged``, ``iterations``), ``active`` atoms
            per position, ``lam1`` in use and ``lam1_max``, at which all codes vanish; and the image ``rebuilt`` from
            the codes, in the contrast of the one seen, with its ``likeness`` to that.

        Raises:
            RequestError: something is wrong with the request.
        """
        wish = self._read(request)
        with self._lock, torch.inference_mode():
            seen = add_noise(wish.pixels, wish.noise, wish.seed)
            return {"input": pack(wish.pixels), "seen": pack(seen)} | self._answer(wish, seen)

    def pictures(self, request: object) -> dict[str, Any]:
        """What atoms of a layer look like.

        Args:
            request: an object with the fields ``layer`` and ``atoms``, a list of numbers from 0.

        Returns:
            ``pictures`` of these atoms, each with ``channels`` and the ``side`` of the layer's field; 128 is no change.
        """
        fields = Fields(request, ["layer", "atoms"])
        stage = self._stage(fields)
        atoms = fields.wholes("atoms", 0, stage.width - 1, MOST_PICTURES)
        if not self._has_inverse(stage):
            raise RequestError("a convolution has no inverse of its own, so its channels have no pictures.")
        with self._lock, torch.inference_mode():
            made = synthesize(self._network, stage.number, atoms)
        largest = made.abs().flatten(1).amax(1).clamp(min=torch.finfo(made.dtype).tiny)
        levels = (128 + 127 * made / largest[:, None, None, None]).round().to(torch.uint8)
        return {"side": stage.field.size, "pictures": [pack(picture) for picture in levels]}

    def read(self, content: bytes) -> dict[str, Any]:
        """The pixels of an image file, scaled to the size that the network takes.

        Raises:
            DataError: it is not an image, or too large.
        """
        with self._lock:  # a large image takes memory, so one at a time
            return {"pixels": pack(decode_image(content, self._network.in_channels, self._size))}

    def _describe_layer(self, stage: Stage) -> dict[str, Any]:
        layer, field = stage.layer, stage.field
        about: dict[str, Any] = {"sparse": False, "has_lam1": False, "tol": None}
        if isinstance(layer, SparseCoding2d):
            # Codes with a fixed sum have a fixed penalty, whatever its weight.
            about = {"sparse": True, "has_lam1": layer.constraint != "sum_to_one", "tol": layer.tol or None}
        return about | {
            "number": stage.number,
            "width": stage.width,
            "inverse": self._has_inverse(stage),
            "field": {"size": field.size, "step": field.step, "start": field.start},
        }

    def _has_inverse(self, stage: Stage) -> bool:
        """Whether codes of this layer lead back to an image."""
        return all(below.is_sparse for below in self._anatomy.stages[: stage.number])

    def _stage(self, fields: Fields) -> Stage:
        stages = self._anatomy.stages
        return stages[(fields.whole("layer", 1, len(stages)) or self._first) - 1]

    def _read(self, request: object) -> Wish:
        fields = Fields(request, ["pixels", "drawing", "layer", "lam1", "tol", "noise", "seed"])
        return Wish(
            self._pixels(fields),
            self._stage(fields),
            fields.number("lam1", 0, LARGEST_LAM1),
            fields.number("tol", *TOLERANCES),
            fields.number("noise", 0, 1) or 0.0,
            fields.whole("seed", 0, 2**32 - 1) or 0,
        )

    def _pixels(self, fields: Fields) -> Tensor:
        if fields.has("pixels") == fields.has("drawing"):
            raise RequestError("a request needs an image: either pixels or a drawing.")
        if fields.has("pixels"):
            return fields.image("pixels", (self._network.in_channels, *self._size))
        if self._network.in_channels != 1:
            raise RequestError("this network takes colour images, so it needs pixels, not a drawing.")
        return center_drawing(fields.image("drawing", (CANVAS, CANVAS)), self._frame)

    def _answer(self, wish: Wish, seen: Tensor) -> dict[str, Any]:
        x = image = self._network.preprocess(seen[None])
        about: dict[str, Any] = {}
        for stage in self._anatomy.stages:
            inputs = stage.normalize(x)
            if stage.number == wish.stage.number:
                x, about = _look_closely(stage, inputs, wish)
                about |= _show_codes(x) | self._show_image(stage, x, image)
            else:
                x = _code(stage, inputs, wish.tol)
        if self._anatomy.norm is not None:
            x = self._anatomy.norm(x)
        shares = self._anatomy.classifier(x.mean((2, 3))).softmax(1)[0]
        return {"shares": [_finite(share) for share in shares.tolist()]} | about

    def _show_image(self, stage: Stage, codes: Tensor, image: Tensor) -> dict[str, Any]:
        """The image rebuilt from codes, with brightness and contrast of the one they came from."""
        if not self._has_inverse(stage):
            return {"rebuilt": None}
        matched = match_contrast(rebuild_structure(self._network, codes.nan_to_num(0), stage.number), image)
        pixels = to_pixels(self._network, matched.image)[0]
        return {
            "rebuilt": pack(pixels.mul(255).round().to(torch.uint8)),
            "likeness": _finite(matched.likeness),
        }


def add_noise(pixels: Tensor, noise: float, seed: int) -> Tensor:
    """The image with Gaussian noise, rounded and cut off to 8 bits; the same seed draws the same noise."""
    if noise == 0:
        return pixels
    drawn = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(seed))
    return (pixels + 255 * noise * drawn).round().clamp(0, 255).to(torch.uint8)


def _look_closely(stage: Stage, inputs: Tensor, wish: Wish) -> tuple[Tensor, dict[str, Any]]:
    """The codes of the chosen layer, and how they were found; of a convolution, there is nothing to tell."""
    layer = stage.layer
    if not isinstance(layer, SparseCoding2d):
        return stage.code(inputs), dict.fromkeys(_ABOUT_CODES)
    model = layer.coding_model()
    trained, highest = float(model.lam1.mean()), vanishing_lam1(model, inputs)
    if wish.lam1 is not None:
        model = model._replace(lam1=changed_lam1(model.lam1, wish.lam1))
    options = layer.options.change(tol=wish.tol, stop="signal")
    solution = certify_codes(inputs, model, options)
    fixed_steps = options.has_fixed_steps and options.solver != "active_set"  # without a tolerance to meet
    about = {
        "residual": _relative_residual(solution),
        "converged": None if fixed_steps else _finite(float(solution.converged.double().mean())),
        "iterations": _finite(solution.mean_iter),
        "lam1": trained if wish.lam1 is None else wish.lam1,
        "lam1_trained": _finite(trained),
        "lam1_max": _finite(highest),
    }
    return solution.codes, about


def _show_codes(codes: Tensor) -> dict[str, Any]:
    return {
        "codes": pack(codes[0].nan_to_num(0)),
        "shape": list(codes.shape[1:]),
        "active": float((codes != 0).sum(1).double().mean()),
    }


def _code(stage: Stage, inputs: Tensor, tol: float | None) -> Tensor:
    """The codes of one of the other layers."""
    layer = stage.layer
    if tol is None or not isinstance(layer, SparseCoding2d):
        return stage.code(inputs)
    return code(inputs, layer.coding_model(), layer.options.change(tol=tol))


def _relative_residual(solution: Solution) -> float | None:
    """The largest distance from optimality, relative to the largest code; 0 where all codes are."""
    largest = float(solution.codes.abs().amax())
    return _finite(float(solution.residual.max()) / largest) if largest != 0 else 0.0


def _finite(value: float) -> float | None:
    """JSON has no word for other numbers."""
    return value if math.isfinite(value) else None
