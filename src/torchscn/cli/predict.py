"""``scn predict``: what a trained network sees in your own images."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from torchscn.cli.arguments import ImagePath, WholeNumber
from torchscn.cli.display import plain
from torchscn.cli.messages import complain

if TYPE_CHECKING:
    from torchscn.network import Network

__all__ = ["predict"]

BATCH = 64  # images classified together
FEW = 8  # images that need no progress bar


def predict(run: str, *images: ImagePath, top: WholeNumber = 3, json: bool = False) -> None:
    """Classify image files with a trained network.

    A file that cannot be read is reported, the others are still answered, and the exit code is 1.

    Parameters
    ----------
    run
        Folder of a run, or name of a network that comes with the package (listed by `scn info`).
    images
        Image files, and folders with image files; each is scaled to the size the network was trained on.
    top
        How many answers to show per image.
    json
        Print one JSON object per line and image instead of a table.
    """
    if not images:
        raise ValueError("name at least one image file or folder.")
    if top < 1:
        raise ValueError(f"--top must be a whole number, at least 1; got {top}.")

    from torchscn.training import load_trained

    model = load_trained(run).model
    n_answers = min(top, model.num_classes)
    table = Table(Column("image", overflow="fold"), *["answer"] * n_answers, box=None)
    n_failed = 0
    for result in _classify_all(model, _list(images), n_answers, bar=not (json and sys.stdout.isatty())):
        if json:
            print(_as_json(result))
        if result.error is not None:
            n_failed += 1
            complain(result.error)
        else:
            table.add_row(plain(result.image), *(plain(f"{name} {100 * share:.1f}%") for name, share in result.answers))
    if table.rows and not json:
        Console().print(table)
    if n_failed:
        sys.exit(1)


@dataclass(frozen=True)
class _Result:
    """What is known about one image: the most likely classes with their shares, or what is wrong with it."""

    image: Path
    answers: tuple[tuple[str, float], ...] = ()
    error: str | None = None


def _list(images: Sequence[Path]) -> list[_Result]:
    """Every image, those inside folders included, without answers yet."""
    from torchscn.data import DataError, find_images

    found: list[_Result] = []
    for image in images:
        try:
            found += [_Result(path) for path in (find_images(image) if image.is_dir() else [image])]
        except (DataError, OSError) as error:
            found.append(_Result(image, error=str(error)))
    return found


def _classify_all(model: "Network", listed: Sequence[_Result], n_answers: int, *, bar: bool) -> Iterator[_Result]:
    """The results in order, with a progress bar on stderr if there are many and somebody watches."""
    console = Console(stderr=True)
    hidden = not bar or len(listed) <= FEW or not console.is_terminal
    with Progress(console=console, transient=True, disable=hidden, redirect_stdout=False) as progress:
        task = progress.add_task("classifying", total=len(listed))
        for start in range(0, len(listed), BATCH):
            batch = listed[start : start + BATCH]
            yield from _classify(model, batch, n_answers)
            progress.advance(task, len(batch))


def _classify(model: "Network", batch: Sequence[_Result], n_answers: int) -> list[_Result]:
    """The answers for images that are read and classified together."""
    import torch

    from torchscn.data import DataError, read_image

    assert model.classes is not None
    assert model.image_size is not None
    results, pixels = list(batch), {}
    for row, result in enumerate(results):
        if result.error is None:
            try:
                pixels[row] = read_image(result.image, channels=model.in_channels, size=model.image_size)
            except DataError as error:
                results[row] = replace(result, error=str(error))
    if pixels:
        with torch.inference_mode():
            best = model(model.preprocess(torch.stack(list(pixels.values())))).softmax(1).topk(n_answers)
        for row, indices, shares in zip(pixels, best.indices.tolist(), best.values.tolist(), strict=True):
            names = (model.classes[index] for index in indices)
            results[row] = replace(results[row], answers=tuple(zip(names, shares, strict=True)))
    return results


def _as_json(result: _Result) -> str:
    if result.error is not None:
        return dumps({"image": str(result.image), "error": result.error})
    answers = [{"class": name, "share": share} for name, share in result.answers]
    return dumps({"image": str(result.image), "answers": answers})
