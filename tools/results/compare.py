"""Does a trained network depend on how its codes are computed, or on how its weights are stored?"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchscn.data import Batches
from torchscn.network import Network
from torchscn.training import evaluate, evaluation_batches, load_trained
from torchscn.training.run_folder import RunFolder
from torchscn.weights import fill_model, read_weights

__all__ = ["FIRST", "compare_solvers", "compare_storage", "mirrored_error"]

FIRST = 500  # test images whose wrong answers are counted separately, for a quick check of published weights

# All others are compared with the first.
SOLVERS: tuple[dict[str, Any], ...] = (
    {"solver": "coordinate", "tol": 1e-5},
    {"solver": "coordinate", "tol": 1e-2},
    {"solver": "fista", "tol": 0.0, "max_iter": 50},
    {"solver": "active_set", "tol": 1e-5},
)

Progress = Callable[[str, int, int], None]


def compare_solvers(
    folder: Path, data_dir: Path | None, n_images: int, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Test error of a run's network with its codes computed in different ways.

    Args:
        folder: the run folder.
        data_dir: where the data sets are; None uses ``TORCHSCN_DATA``.
        n_images: how many of the first test images to use (the exact solver takes a second for a few).
        progress: called with what is being measured, images done, images in total.

    Returns:
        One row for each of :data:`SOLVERS`: its options, the number of ``images``, ``error`` in percent, and
        ``other_answers``, the share of images in percent that are answered differently from the first.
    """
    batches = evaluation_batches(load_trained(folder), data_dir)
    batches.images = batches.images.take(range(min(n_images, len(batches.images))))
    rows: list[dict[str, Any]] = []
    reference: Tensor | None = None
    for options in SOLVERS:
        found = _answers(
            load_trained(folder, options).model, batches, f"{options['solver']} {options['tol']:g}", progress
        )
        reference = found if reference is None else reference
        rows.append(options | {"images": len(found)} | _judge(found, reference, batches))
    return rows


def compare_storage(folder: Path, data_dir: Path | None, progress: Progress | None = None) -> list[dict[str, Any]]:
    """Test error of a run's network with its weights stored in float32 and in float16, on all test images."""
    trained = load_trained(folder)
    weights = read_weights(RunFolder(folder).weights)
    batches = evaluation_batches(trained, data_dir)
    rows = []
    reference: Tensor | None = None
    for dtype in (torch.float32, torch.float16):
        name = str(dtype).removeprefix("torch.")
        fill_model(trained.model, weights.stored_in(dtype).model, source=name)
        found = _answers(trained.model, batches, name, progress)
        reference = found if reference is None else reference
        n_wrong = int((found != batches.images.labels)[:FIRST].sum())
        rows.append({"stored_as": name, **_judge(found, reference, batches), f"wrong_of_first_{FIRST}": n_wrong})
    return rows


def mirrored_error(folder: Path, data_dir: Path | None, progress: Progress | None = None) -> float:
    """Test error of a run's network in percent, its scores averaged with those of mirrored images."""
    trained = load_trained(folder)
    batches = evaluation_batches(trained, data_dir)

    def show(done: int) -> None:
        if progress is not None:
            progress("mirrored", done, len(batches.images))

    return round(evaluate(trained.model, batches, progress=show, mirror=True).error, 4)


def _answers(model: Network, batches: Batches, what: str, progress: Progress | None) -> Tensor:
    """The class the model chooses for every image."""
    found: list[Tensor] = []
    with torch.inference_mode():
        for x, _ in batches.epoch(0):
            found.append(model(x).argmax(1))
            if progress is not None:
                progress(what, sum(map(len, found)), len(batches.images))
    return torch.cat(found)


def _judge(found: Tensor, reference: Tensor, batches: Batches) -> dict[str, float]:
    def percent(wrong: Tensor) -> float:
        return round(100 * float(wrong.double().mean()), 4)

    return {"error": percent(found != batches.images.labels), "other_answers": percent(found != reference)}
