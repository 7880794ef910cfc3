"""The file a measurement on a GPU is kept in: written here, sent by anybody, and read with care."""

import json
import re
import string
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from torchscn.atomic import replace_file
from torchscn.bench.gpu.steps import MODES, PRECISIONS
from torchscn.json_file import read_table

__all__ = ["DATE", "FORMAT", "Result", "file_name", "load_result", "load_results", "save_result"]

Result = dict[str, Any]

FORMAT = 1
"""Of the files; those of another format are refused."""

DATE = "%Y-%m-%d %H:%M"
"""How a date is written."""

_NETWORKS = ("scn1", "scn2", "scn4", "cnn1", "cnn2", "cnn4")
_KERNELS = ("none", "triton", "torch")
_DEVICE = {"name": str, "capability": str, "mebibytes": int, "multiprocessors": int}
_VERSIONS = dict.fromkeys(("torchscn", "commit", "torch", "triton", "cuda", "driver", "python", "system"), str)
_CHECK = {"name": str, "kernel": str, "passed": bool, "error?": float, "problem?": str}
_STEP = {
    **{"network": str, "mode": str, "precision": str, "kernel": str},
    **{"seconds?": float, "first_seconds?": float, "peak_mebibytes?": float, "problem?": str},
}
_SHAPE = {
    "format": int,
    "date": str,
    "device": _DEVICE,
    "versions": _VERSIONS,
    "batch": int,
    "rounds": int,
    "checks": [_CHECK],
    "steps": [_STEP],
    "triton_problem?": str,
}
_LONGEST = 80  # characters of a name or version
_ALLOWED = frozenset(string.ascii_letters + string.digits + " .,:;+-_/()@#")  # nothing that means something in a page


def file_name(result: Result) -> str:
    """A name made of device and date.

    Example:
        >>> file_name({"device": {"name": "NVIDIA A100-SXM4"}, "date": "2031-01-02 03:04"})
        'gpu-nvidia-a100-sxm4-2031-01-02-0304.json'
    """
    device = re.sub(r"[^a-z0-9]+", "-", result["device"]["name"].lower()).strip("-")
    return f"gpu-{device}-{datetime.strptime(result['date'], DATE):%Y-%m-%d-%H%M}.json"


def save_result(folder: Path, result: Result) -> Path:
    """Save a result under its own name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(result)
    replace_file(path, [(json.dumps(result, indent=1, allow_nan=False) + "\n").encode()])
    return path


def load_results(folder: Path) -> list[Result]:
    """Every result in a folder, in the order of their names; there may be none.

    Raises:
        ValueError: a file is not a result; it is named.
    """
    return [load_result(path) for path in sorted(folder.glob("*.json"))]


def load_result(path: Path) -> Result:
    """The result in a file.

    Raises:
        ValueError: it is not one; the message names the file.
    """
    result = read_table(path, _SHAPE)
    problem = next(_problems(result), None)
    if problem is not None:
        raise ValueError(f"{path} is not what it should be: {problem}.")
    return result


def _problems(result: Result) -> Iterator[str]:
    """What the values must be besides being of the right type."""
    if result["format"] != FORMAT:
        yield f"its format is {result['format']}, this version reads {FORMAT}"
    if not _is_date(result["date"]):
        yield "'date' must be a date"
    for group in ("device", "versions"):
        for name, value in result[group].items():
            if isinstance(value, str) and not _is_plain(value):
                yield f"{group!r}, {name!r} must be plain words, {_LONGEST} characters at most"
    for n, check in enumerate(result["checks"], 1):
        if check["kernel"] not in _KERNELS:
            yield f"'checks', entry {n}, 'kernel' must be one of {', '.join(_KERNELS)}"
    yield from _step_problems(result["steps"])
    if min(result["batch"], result["rounds"]) < 1:
        yield "'batch' and 'rounds' must be at least 1"


def _step_problems(steps: list[dict[str, Any]]) -> Iterator[str]:
    choices = {"network": _NETWORKS, "mode": MODES, "precision": PRECISIONS, "kernel": _KERNELS}
    for n, step in enumerate(steps, 1):
        for name, known in choices.items():
            if step[name] not in known:
                yield f"'steps', entry {n}, {name!r} must be one of {', '.join(known)}"
        if step.get("seconds", 1.0) <= 0:
            yield f"'steps', entry {n}, 'seconds' must be above 0"
        if ("seconds" in step) == ("problem" in step):
            yield f"'steps', entry {n} must have either 'seconds' or 'problem'"


def _is_date(text: str) -> bool:
    try:
        datetime.strptime(text, DATE)
    except ValueError:
        return False
    return True


def _is_plain(text: str) -> bool:
    return 0 < len(text) <= _LONGEST and set(text) <= _ALLOWED
