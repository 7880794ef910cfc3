"""Trained networks on noisy images: as they are, and with a larger lam1 in the first layer."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tools.results import save_record
from torchscn.data import Batches, ImageSet
from torchscn.layers import SparseCoding2d
from torchscn.network import Network
from torchscn.training import TrainedModel, evaluate, load_trained
from torchscn.training.loop import load_data

__all__ = ["ADAPTED", "AS_TRAINED", "NOISES", "RAISES", "adapt_lam1", "add_noise", "measure_noise"]

NOISES = (0, 10, 20, 30)  # standard deviations, in grey levels
RAISES = (0.2, 0.4, 0.8)  # added to lam1 of the first layer
N_IMAGES = 2000
N_SAMPLES = 200  # images that show how well the first layer reconstructs
AS_TRAINED, ADAPTED = "as trained", "adapted"


def measure_noise(folder: Path, records: Path, data_dir: Path | None) -> Path:
    """Test a run's network on noisy images and record the errors.

    The noise is the same for all networks. ``ADAPTED`` raises lam1 of the first layer without looking at labels, until
    the layer leaves as much of the images unexplained as it did of training images, and the noise on top of it.

    Args:
        folder: the run folder.
        records: folder of the records.
        data_dir: where the data sets are; None uses ``TORCHSCN_DATA``.

    Returns:
        The file of the record.
    """
    trained = load_trained(folder)
    train_set, test_set = load_data(trained.config, data_dir)
    test_set, clean = test_set.take(range(min(N_IMAGES, len(test_set)))), train_set.images[:N_SAMPLES]
    rows = [
        {"noise": noise, "lam1": name, "raised": raised, "error": round(error, 4)}
        for noise in NOISES
        for name, raised, error in _errors(trained, test_set, noise, clean)
    ]
    config = trained.config
    return save_record(records, {"name": folder.name, "model": config.model, "seed": config.seed, "rows": rows})


def _errors(
    trained: TrainedModel, test_set: ImageSet, noise: float, clean: Tensor
) -> Iterator[tuple[str, float, float]]:
    """What was done to lam1, by how much it was raised, and the error in percent."""
    model, images = trained.model, add_noise(test_set.images, noise)
    assert model.normalization is not None
    noisy = replace(test_set, images=images)
    batches = Batches(noisy, 256, model.normalization, shuffle=False, drop_last=False)
    yield AS_TRAINED, 0.0, evaluate(model, batches).error
    if trained.config.model.startswith("scn"):
        layer = _first(model)[1]
        own = layer.lam1.detach().clone()
        adapted = adapt_lam1(model, images[:N_SAMPLES], clean, noise)
        for name, raised in [*((f"raised by {value:g}", value) for value in RAISES), (ADAPTED, adapted)]:
            layer.lam1.data = own + raised
            yield name, raised, evaluate(model, batches).error
        layer.lam1.data = own


def add_noise(images: Tensor, noise: float) -> Tensor:
    """The uint8 images with Gaussian noise of this standard deviation, always the same."""
    drawn = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return (images + noise * drawn).round().clamp(0, 255).to(torch.uint8)


def adapt_lam1(model: Network, images: Tensor, clean: Tensor, noise: float) -> float:
    """How much more lam1 makes the first layer explain none of the noise, found by halving an interval."""
    added = _patches(model, add_noise(clean, noise)) - _patches(model, clean)
    goal = _unexplained(model, clean, 0.0) + float(added.square().mean())
    low, high = 0.0, 4.0
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (middle, high) if _unexplained(model, images, middle) < goal else (low, middle)
    return round(low, 4)


def _unexplained(model: Network, images: Tensor, raised: float) -> float:
    """Mean square of what the first layer leaves of its patches, with lam1 raised by so much."""
    norm, layer = _first(model)
    own = layer.lam1.detach().clone()
    layer.lam1.data = own + raised
    with torch.inference_mode():
        codes = layer(norm(model.preprocess(images)))
        left = _patches(model, images) - layer.reconstruct(codes).flatten(2)
    layer.lam1.data = own
    return float(left.square().mean())


def _patches(model: Network, images: Tensor) -> Tensor:
    """What the first layer sees, ``(n_images, n_features, n_positions)``."""
    norm, layer = _first(model)
    with torch.inference_mode():
        return F.unfold(norm(model.preprocess(images)), layer.kernel_size, padding=layer.padding)


def _first(model: Network) -> tuple[nn.Module, SparseCoding2d]:
    """The first layer, and the batch norm before it."""
    norm, layer = next(iter(model.blocks)).children()
    assert isinstance(layer, SparseCoding2d)
    return norm, layer
