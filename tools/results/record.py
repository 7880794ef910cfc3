"""A finished run as one JSON file: settings, environment, curve, and what was measured on it afterwards."""

import itertools
import json
import math
import re
import shlex
from pathlib import Path
from statistics import mean
from typing import Any

from torchscn.atomic import replace_file
from torchscn.json_file import find_misfit, read_table
from torchscn.training import load_trained
from torchscn.training.run_folder import RunFolder, count_parameters

__all__ = [
    "count_epochs_before",
    "describe_commands",
    "describe_epochs",
    "describe_over_time",
    "find_start",
    "keep_comparisons",
    "load_records",
    "record_run",
    "save_record",
]

_CURVE = ("epoch", "train_loss", "train_error", "test_loss", "test_error", "lr", "seconds", "images_per_second")
_COMPARISONS = ("storage", "solvers", "mirrored_error")

# What the tables and pictures need of a record.
_CALL = {"command": str, "threads": object, "commit": object}
_ENVIRONMENT = _CALL | {
    "resumed?": [_CALL | {"after_epochs": object}],
    "started_from?": {"name": str, "sha256": str, "epochs": object},
}
_COMPARED = {"error": float, "other_answers": float}
_RECORD = {
    **dict.fromkeys(("name", "model", "data", "tested_on"), str),
    **dict.fromkeys(("parameters", "epochs", "seed"), int),
    **dict.fromkeys(("test_error", "train_error", "minutes", "images_per_second"), float),
    "settings": {},
    "environment": _ENVIRONMENT,
    "curve": [dict.fromkeys(("epoch", "train_error", "test_error?"), float)],
    **dict.fromkeys(("evaluation_seconds?", "mirrored_error?"), float),
    "storage?": [_COMPARED | {"stored_as": str}],
    "solvers?": [_COMPARED | {"solver": str, "tol": float, "images": int}],
}
# The losses of a run that went wrong may be as large as a number can be; a failure is recorded like a success.
_TRAINED = dict.fromkeys(("epoch", "train_error", "lr", "seconds", "images_per_second"), float) | {"train_loss": object}
_TESTED = dict.fromkeys(("test_error", "evaluation_seconds"), float) | {"test_loss": object, "layers": [{}]}


def record_run(folder: Path) -> dict[str, Any]:
    """Everything that makes a finished run credible and reproducible; the name is that of the folder.

    Raises:
        ValueError: this is not a run folder, the run is not finished, or its records are damaged.
    """
    trained = load_trained(folder)
    run = RunFolder(folder)
    metrics = run.read_metrics()
    config = trained.config
    if len(metrics) < config.epochs:
        raise ValueError(f"the run in {folder} is not finished: {len(metrics)} of {config.epochs} epochs are done.")
    problem = find_misfit(metrics, [_TRAINED | {f"{name}?": shape for name, shape in _TESTED.items()}], "its epochs")
    problem = problem or find_misfit(metrics[-1], _TESTED, "its last epoch")
    if problem is not None:
        raise ValueError(f"{run.metrics} is damaged: {problem}.")
    last = metrics[-1]
    return {
        "name": folder.resolve().name,
        "model": config.model,
        "data": _without_places(config.data),
        "tested_on": "validation images" if config.validation else "test images",
        "parameters": count_parameters(trained.model),
        "epochs": config.epochs,
        "seed": config.seed,
        "test_error": round(last["test_error"], 4),
        "train_error": round(last["train_error"], 4),
        "minutes": round(sum(m["seconds"] + m.get("evaluation_seconds", 0.0) for m in metrics) / 60, 2),
        "images_per_second": round(mean(m["images_per_second"] for m in metrics), 1),
        "evaluation_seconds": round(min(m["evaluation_seconds"] for m in metrics if "evaluation_seconds" in m), 1),
        "settings": _without_places(config.changed_settings()),
        "environment": _without_places(read_table(run.environment, _ENVIRONMENT)),
        "curve": [{key: _short(entry[key]) for key in _CURVE if key in entry} for entry in metrics],
        "layers": [{key: _short(value) for key, value in layer.items()} for layer in last["layers"]],
    }


def _without_places(value: Any) -> Any:
    """The value with the last two parts of every full path: where folders are on a machine is nobody's concern.

    Example:
        >>> _without_places({"command": "scn train digits --run-dir /home/me/runs/x --lr 1"})
        {'command': 'scn train digits --run-dir runs/x --lr 1'}
    """
    if isinstance(value, dict):
        return {
            name: _without_places_in_command(entry) if name == "command" else _without_places(entry)
            for name, entry in value.items()
        }
    if isinstance(value, list):
        return [_without_places(entry) for entry in value]
    return _shorten(value) if isinstance(value, str) else value


def _without_places_in_command(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:  # version 0.1 wrote commands without quotes
        words = command.split()
    return shlex.join(map(_shorten, words))


def _shorten(word: str) -> str:
    before, _, path = word.rstrip("/").partition("/")
    is_full_path = bool(path) and (not before or before[-1] in "=:")
    return before + "/".join(path.split("/")[-2:]) if is_full_path else word


def keep_comparisons(folder: Path, record: dict[str, Any]) -> None:
    """Copy the comparisons from an earlier record of the same run into ``record``."""
    path = folder / f"{record['name']}.json"
    earlier = read_table(path) if path.exists() else {}
    if earlier.get("curve") == record["curve"]:
        record.update({key: earlier[key] for key in _COMPARISONS if key in earlier})


def save_record(folder: Path, record: dict[str, Any]) -> Path:
    """Save a record as ``NAME.json``, with one line for each entry of a curve or table."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record['name']}.json"
    lines = [f"{json.dumps(key)}: {_lines(value)}" for key, value in record.items()]
    replace_file(path, [("{\n" + ",\n".join(lines) + "\n}\n").encode()])
    return path


def load_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Every saved record, by name.

    Raises:
        ValueError: the folder holds none, or one that is damaged.
    """
    found = {path.stem: read_table(path, _RECORD) for path in sorted(folder.glob("*.json"))}
    if not found:
        raise ValueError(
            f"{folder} holds no records; make one with `python -m tools.results add RUN --records {folder}`."
        )
    return found


def describe_commands(record: dict[str, Any]) -> str:
    """The commands of a run: the first, and those that resumed it where more than the number of threads differs.

    Example:
        >>> describe_commands({"environment": {"command": "scn train digits"}})
        '`scn train digits`'
        >>> resumed = [{"command": "scn train digits --resume", "after_epochs": epoch} for epoch in (2, 5)]
        >>> describe_commands({"environment": {"command": "scn train digits", "resumed": resumed}})
        '`scn train digits`, resumed after epochs 2, 5'
        >>> resumed = [{"command": "scn train digits --resume --threads=2", "after_epochs": 3}]
        >>> describe_commands({"environment": {"command": "scn train digits", "resumed": resumed}})
        '`scn train digits`, resumed after epoch 3'
    """
    environment = record["environment"]
    told: list[tuple[str, list[int]]] = [(environment["command"], [])]
    for entry in environment.get("resumed", ()):
        if _what_is_asked(entry["command"]) != _what_is_asked(told[-1][0]):
            told.append((entry["command"], []))
        told[-1][1].append(entry["after_epochs"])
    (first, epochs), *others = told
    parts = [f"`{first}`{_resumed(epochs)}"]
    parts += [f"after epoch {epochs[0]} `{command}`{_resumed(epochs[1:])}" for command, epochs in others]
    return ", ".join(parts)


def _what_is_asked(command: str) -> str:
    return re.sub(r" --resume\b| --threads[ =]\d+", "", command)


def _resumed(epochs: list[int]) -> str:
    distinct = list(dict.fromkeys(epochs))
    if not distinct:
        return ""
    return f", resumed after epoch{'s' if len(distinct) > 1 else ''} {', '.join(map(str, distinct))}"


def find_start(record: dict[str, Any]) -> dict[str, Any] | None:
    """What a run started from; None for random weights.

    Example:
        >>> find_start({"settings": {"start_from": "runs/a"}, "environment": {"lost": "the first environment"}})
        {'name': 'runs/a', 'sha256': None, 'epochs': None}
    """
    name = record["settings"].get("start_from")
    unknown = {"name": name, "sha256": None, "epochs": None}
    return record["environment"].get("started_from", unknown) if name is not None else None


def count_epochs_before(record: dict[str, Any]) -> int:
    """The epochs of the network that a run started from; 0 for random weights, and where nobody knows."""
    return (find_start(record) or {}).get("epochs") or 0


def describe_epochs(record: dict[str, Any]) -> str:
    """The epochs of a run, after those of the network it started from.

    Example:
        >>> describe_epochs({"epochs": 8, "settings": {}, "environment": {}})
        '8'
        >>> record = {"epochs": 8, "settings": {"start_from": "scn1-cifar10"}}
        >>> describe_epochs({**record, "environment": {"started_from": {"name": "scn1-cifar10", "epochs": 60}}})
        '60 + 8'
        >>> describe_epochs({**record, "environment": {}})
        '? + 8'
    """
    start = find_start(record)
    return str(record["epochs"]) if start is None else f"{start['epochs'] or '?'} + {record['epochs']}"


def describe_over_time(record: dict[str, Any], what: str) -> str:
    """An entry of a run's environment, with what it became when the run was resumed.

    Example:
        >>> describe_over_time({"environment": {"threads": 1, "resumed": [{"threads": 1}, {"threads": 2}]}}, "threads")
        '1, then 2'
        >>> describe_over_time({"environment": {"threads": 1, "resumed": [{"threads": 2}, {"threads": 1}]}}, "threads")
        '1 and 2 in turns'
    """
    environment = record["environment"]
    values = [environment[what], *(entry[what] for entry in environment.get("resumed", ()))]
    changes = [str(value) for value, _ in itertools.groupby(values)]
    distinct = list(dict.fromkeys(changes))
    return ", then ".join(changes) if len(changes) == len(distinct) else f"{' and '.join(distinct)} in turns"


def _short(value: Any) -> Any:
    """Six digits of a number are plenty; JSON has no word for one that is not finite."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _lines(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n " + ",\n ".join(json.dumps(entry) for entry in value) + "\n]"
    return json.dumps(value)
