"""Results of the benchmarks: run, save, print, draw."""

import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from torchscn.atomic import replace_file
from torchscn.bench.suites import SUITES
from torchscn.environment import describe_environment
from torchscn.json_file import read_table

__all__ = ["draw", "load_results", "print_table", "run_suite", "save_results"]

# What tables and pictures need of a saved result; the pictures of two suites need more of its rows.
_NUMBERS = {"seconds?": float, "ratio?": float, "error?": float}
_SHAPE = {"suite": str, "about": str, "machine": {}, "rounds": int}
_ROWS = {
    "networks": _NUMBERS | {"network": str, "mode": str, "name": str, "ratio": float},
    "scaling": {"over": str, "n": float, "seconds": float},
}


def run_suite(name: str, rounds: int) -> dict[str, Any]:
    """Measure one suite; returns its rows with the machine and the versions they were measured on."""
    torch.manual_seed(0)
    start = time.time()
    rows = SUITES[name](rounds)
    return {
        "suite": name,
        "about": " ".join((SUITES[name].__doc__ or "").split()),
        "machine": _machine(),
        "rounds": rounds,
        "took_seconds": round(time.time() - start, 1),
        "rows": rows,
    }


def _machine() -> dict[str, Any]:
    """The part of the environment that is shown with the figures, in this order."""
    environment = describe_environment()
    environment["system"] = environment["machine"]
    return {key: environment[key] for key in ("processor", "system", "threads", "kernel", "torch", "torchscn")}


def save_results(folder: Path, result: dict[str, Any]) -> Path:
    """Save the result of a suite as ``SUITE.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['suite']}.json"
    replace_file(path, [(json.dumps(result, indent=1) + "\n").encode()])
    return path


def load_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Every saved result, by suite.

    Raises:
        ValueError: the folder holds none, or one that is damaged.
    """
    shapes = {name: _SHAPE | {"rows": [_ROWS.get(name, _NUMBERS)]} for name in SUITES}
    # Other files may lie there; draw() passes over them.
    found = {path.stem: read_table(path, shapes.get(path.stem)) for path in sorted(folder.glob("*.json"))}
    if not found:
        raise ValueError(f"{folder} holds no benchmark results; make some with `scn bench SUITE --output {folder}`.")
    return found


def print_table(result: dict[str, Any], console: Console) -> None:
    """The rows of a result as a table."""
    machine = result["machine"]
    title = f"{result['about']}\n{machine['threads']} threads, kernel {machine['kernel']}, torch {machine['torch']}"
    columns = _columns(result)
    table = Table(*columns, title=title)
    for row in result["rows"]:
        table.add_row(*(_readable(key, row.get(key)) for key in columns))
    console.print(table)


def _readable(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key == "seconds":
        return f"{1e3 * value:.2f} ms"
    if key == "ratio":
        return f"{value:.2f}x"
    if key == "error":
        return f"{value:.1e}"
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def draw(folder: Path, output: Path) -> list[Path]:
    """Draw pictures and write a page of tables from the saved results; returns the files.

    Raises:
        ValueError: the folder holds no results, or matplotlib is not installed.
    """
    results = {name: result for name, result in load_results(folder).items() if name in SUITES}
    output.mkdir(parents=True, exist_ok=True)
    tables = output / "tables.md"
    tables.write_text("\n".join(["# Benchmark results\n", *(_markdown(result) for result in results.values())]))
    drawers = {"networks": _draw_networks, "scaling": _draw_scaling}
    pictures = [drawers[name](results[name], output / f"{name}.png") for name in drawers if name in results]
    return [tables, *pictures]


def _markdown(result: dict[str, Any]) -> str:
    """A result as a section with a table."""
    columns = _columns(result)
    machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    lines = [f"## {result['suite']}\n", f"{result['about']} Best of {result['rounds']}. {machine}.\n"]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in result["rows"]:
        lines.append("| " + " | ".join(_readable(key, row.get(key)) for key in columns) + " |")
    return "\n".join(lines) + "\n"


def _columns(result: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(key for row in result["rows"] for key in row))


def _figure(columns: int) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("the pictures need matplotlib: pip install torchscn[plot]") from error
    figure = Figure(figsize=(4.6 * columns, 3.6), layout="constrained")
    return figure, figure.subplots(1, columns)


def _draw_networks(result: dict[str, Any], path: Path) -> Path:
    """Bars: time of a step relative to the convolutional twin."""
    groups = list(dict.fromkeys((row["network"], row["mode"]) for row in result["rows"]))
    figure, axes = _figure(len(groups))
    for place, (network, mode) in zip(axes, groups, strict=True):
        rows = [row for row in result["rows"] if (row["network"], row["mode"]) == (network, mode)]
        bars = place.barh([row["name"] for row in rows], [row["ratio"] for row in rows], color="C0")
        place.bar_label(bars, [f"{row['ratio']:.1f}x" for row in rows], padding=3)
        place.set(xscale="log", title=f"{network}, {mode}", xlabel="time relative to the twin")
        place.set_xlim(0.5, 4 * max(row["ratio"] for row in rows))
        place.invert_yaxis()
        place.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)
    return path


def _draw_scaling(result: dict[str, Any], path: Path) -> Path:
    """Lines: time against atoms, signals and threads, with the expected slope."""
    figure, axes = _figure(3)
    expected = {"atoms": ("quadratic", 2), "signals": ("linear", 1), "threads": ("inverse", -1)}
    units = {"atoms": "seconds per sweep", "signals": "seconds", "threads": "seconds"}
    for place, (over, (slope_name, slope)) in zip(axes, expected.items(), strict=True):
        rows = [row for row in result["rows"] if row["over"] == over]
        n, seconds = [row["n"] for row in rows], [row["seconds"] for row in rows]
        place.loglog(n, seconds, "o-", label="measured")
        place.loglog(n, [seconds[-1] * (value / n[-1]) ** slope for value in n], "--", color="0.6", label=slope_name)
        place.set(xlabel=over, ylabel=units[over])
        place.set_xticks(n, [f"{value:,}" for value in n], rotation=30)
        place.minorticks_off()
        place.legend()
        place.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)
    return path
