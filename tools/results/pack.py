"""Weights of a recorded run, as they come with the package: float16, with a card and a hash."""

from pathlib import Path
from typing import Any

import torch

from tools.results.compare import FIRST
from tools.results.record import describe_commands, describe_epochs, describe_over_time, find_start
from torchscn.training import load_trained
from torchscn.training.run_folder import RunFolder
from torchscn.weights import HASHES, TrainedWeights, file_hash, read_weights, write_weights

__all__ = ["pack_weights"]


def pack_weights(folder: Path, record: dict[str, Any], output: Path) -> Path:
    """Write the weights of a run as ``MODEL-DATA.safetensors``, with their card next to them, and the hashes of all.

    Args:
        folder: the run folder.
        record: the run's record, including its comparison of storage formats.
        output: folder of the package's weights.

    Raises:
        ValueError: the record does not say what storing in float16 does to the error.
    """
    if "storage" not in record:
        raise ValueError(
            f"the record of {record['name']} lacks the comparison; "
            f"make it with `python -m tools.results add {folder} --compare 1000`."
        )
    weights = read_weights(RunFolder(folder).weights)
    half = record["storage"][-1]
    about = {
        "classes": weights.about["classes"],
        "image_size": weights.about["image_size"],
        "model": record["model"],
        "data": record["data"],
        "options": load_trained(folder).config.model_options(),
        "epochs": RunFolder(folder).count_epochs(),
        "test_error": half["error"],
        f"wrong_of_first_{FIRST}": half[f"wrong_of_first_{FIRST}"],
        "command": describe_commands(record),
        "commit": describe_over_time(record, "commit"),
    }
    path = output / f"{record['model']}-{record['data']}.safetensors"
    write_weights(path, TrainedWeights(weights.model, weights.normalization, about).stored_in(torch.float16))
    path.with_suffix(".md").write_text(_card(record, about, weights))
    files = sorted(output.glob("*.safetensors"))
    (output / HASHES).write_text("".join(f"{file_hash(file)}  {file.name}\n" for file in files))
    return path


def _card(record: dict[str, Any], about: dict[str, Any], weights: TrainedWeights) -> str:
    """What a user of the weights should know."""
    height, width = about["image_size"]
    channels = len(weights.normalization["mean"])
    means = ", ".join(f"{value:.4f}" for value in weights.normalization["mean"].mean((1, 2)).tolist())
    spreads = ", ".join(f"{value:.4f}" for value in weights.normalization["std"].flatten().tolist())
    settings = ", ".join(f"{name} {value}" for name, value in record["settings"].items())
    threads = describe_over_time(record, "threads")
    budget = f"{describe_epochs(record)} epochs, {record['minutes']:.0f} minutes, CPU threads: {threads}"
    full, half = (row["error"] for row in record["storage"])
    return f"""# {record["model"]} trained on {record["data"]}

```python
model = torchscn.create_model("{record["model"]}", pretrained="{record["data"]}")
scores = model(model.preprocess(images))  # uint8 images, N x {channels} x {height} x {width}
names = [model.classes[i] for i in scores.argmax(1)]
```

| | |
|---|---|
| parameters | {record["parameters"]:,} |
| test error | {half:.2f} % of the {record["data"]} test images ({full:.2f} % before storing in float16) |
| trained on | the training images of {record["data"]}, {budget} |
| started from | {_start(record)} |
| command | {about["command"]} (seed {record["seed"]}, commit {about["commit"]}) |
| settings | {settings} |
| preprocessing | (pixels / 255 - mean) / std per channel; mean {means}; std {spreads} |
| classes | {", ".join(about["classes"])} |

The last epoch's weights, not those of the best epoch. The network answers with one of these classes whatever it is
shown; it knows images of {height} x {width} pixels like those of {record["data"]} and nothing else.
"""


def _start(record: dict[str, Any]) -> str:
    """What a run started from, in words: a name may stand for newer weights by now."""
    found = find_start(record)
    if found is None:
        return "random weights"
    what = f"what was {found['name']} then (SHA-256 of the file: {found['sha256'] or 'lost'})"
    return f"{what}; the minutes do not include its own"
