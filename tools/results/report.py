"""Tables and pictures of recorded runs, put into the pages that show them.

A page marks the place of a table with ``<!-- begin NAME -->`` and ``<!-- end NAME -->``; what is between them is
replaced. Runs tested on validation images are left out.
"""

import importlib.util
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tools.results.paper import CIFAR, MNIST, SCN_ERRORS, TIMES, PaperRow
from tools.results.record import (
    count_epochs_before,
    describe_commands,
    describe_epochs,
    describe_over_time,
    find_start,
    load_records,
)
from tools.spread import Spread, summarize
from torchscn.data import DATASETS

__all__ = ["fill_page", "make_table", "make_tables", "write_report"]

Record = dict[str, Any]
_EPOCHS_OF_WIDTHS = 30  # at most, where networks of several widths are compared
_DATA_TITLES = {dataset.name: dataset.title for dataset in DATASETS}


def write_report(records: Path, docs: Path, readme: Path) -> list[Path]:
    """Update the tables of ``docs/results.md`` and the readme, and the pictures next to them, from the records.

    Args:
        records: folder of the records.
        docs: folder of ``results.md``; pictures go to its folder ``results``.
        readme: another page with tables.

    Returns:
        The files that were written.

    Raises:
        ValueError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("the pictures need matplotlib: pip install torchscn[plot]")
    runs = {name: run for name, run in load_records(records).items() if run["tested_on"] == "test images"}
    tables = make_tables(runs)
    pages = [docs / "results.md", readme]
    for page in pages:
        page.write_text(fill_page(page.read_text(), tables))
    return [*pages, *_draw(runs, docs / "results")]


def make_tables(runs: dict[str, Record]) -> dict[str, str]:
    """Every table as markdown, by the name of its place."""
    every = list(runs.values())
    return {
        "cifar": _beside_paper(CIFAR, ("cifar10", "cifar100"), every),
        "mnist": _beside_paper(MNIST, ("mnist",), every),
        "runs": _runs(every),
        "settings": _settings(every),
        "twins": _twins(every),
        "widths": _widths(every),
        "solvers": _solvers(every),
        "storage": _storage(every),
        "times": _times(every),
        "summary": _summary(every),
    }


def fill_page(text: str, tables: dict[str, str]) -> str:
    """The page with every marked place filled.

    Raises:
        ValueError: there is no table with the name of a place.

    Example:
        >>> print(fill_page("<!-- begin a --><!-- end a -->", {"a": "| 1 |"}))
        <!-- begin a -->
        <BLANKLINE>
        | 1 |
        <BLANKLINE>
        <!-- end a -->
    """

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in tables:
            raise ValueError(f"there is no table {name!r}; there are: {', '.join(tables)}.")
        return f"<!-- begin {name} -->\n\n{tables[name]}\n\n<!-- end {name} -->"

    return re.sub(r"<!-- begin (?P<name>[\w-]+) -->.*?<!-- end (?P=name) -->", fill, text, flags=re.DOTALL)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]], n_texts: int = 1) -> str:
    """A markdown table; columns after the first ``n_texts`` are right-aligned."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * n_texts + "--:|" * (len(columns) - n_texts)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _beside_paper(paper: Sequence[PaperRow], data_sets: Sequence[str], runs: list[Record]) -> str:
    """A table of the paper, with our best recipe in a row for every network trained on one of its data sets."""
    rows = [[row.method, row.parameters, row.layers, *map(_percent, row.errors), ""] for row in paper]
    ours = [run for run in _best(runs) if run["data"] in data_sets]
    for name in dict.fromkeys(_architecture(run) for run in ours):
        found = {run["data"]: run for run in ours if _architecture(run) == name}
        size = f"{next(iter(found.values()))['parameters'] / 1e6:.2f}M"
        errors = [f"**{_spread(found[data])}**" if data in found else "-" for data in data_sets]
        epochs = ", ".join(_epochs(found[data]) for data in data_sets if data in found)
        rows.append([f"**{name}, torchscn**", size, "15", *errors, epochs])
    titles = [f"{_DATA_TITLES[name]} error %" for name in data_sets]
    return make_table(["method", "parameters", "layers", *titles, "epochs (ours)"], rows)


def _best(runs: list[Record]) -> list[Record]:
    """The recipe with the lowest error of every network on every data set; the paper's largest networks come first."""
    found: dict[tuple[str, str], Record] = {}
    for run in _pool_seeds(runs):
        key = (run["data"], _architecture(run))
        if key not in found or _spread(run).mean < _spread(found[key]).mean:
            found[key] = run
    order = ["cifar10", "cifar100", "mnist"]

    def place(run: Record) -> tuple[bool, int, int, str]:
        known = order.index(run["data"]) if run["data"] in order else len(order)
        return not run["model"].startswith("scn"), known, -run["parameters"], _architecture(run)

    return sorted(found.values(), key=place)


def _pool_seeds(runs: list[Record]) -> list[Record]:
    """One record for all runs that differ in nothing but their seed: that of the lowest seed, with the means of all.

    Which of them is the best is chance, so that none may stand for its recipe because of its error. A seed that was
    trained twice counts once.
    """
    pools: dict[str, dict[int, Record]] = {}
    for run in sorted(runs, key=lambda run: run["seed"]):
        settings = {name: value for name, value in _recipe(run).items() if name not in ("seed", "start_from")}
        key = json.dumps([run["model"], run["data"], run["epochs"], settings, _start(run)], sort_keys=True)
        pools.setdefault(key, {}).setdefault(run["seed"], run)
    return [_pooled([*pool.values()]) for pool in pools.values()]


def _start(run: Record) -> str:
    """The weights that a run started from, by their hash: a name may come to stand for others."""
    start = find_start(run)
    return "random" if start is None else start["sha256"] or f"what {run['name']} started from"


def _pooled(pool: list[Record]) -> Record:
    means = {name: fmean(run[name] for run in pool) for name in ("train_error", "minutes")}
    return pool[0] | means | {"spread": summarize([run["test_error"] for run in pool]), "pool": pool}


def _spread(run: Record) -> Spread:
    """The test error of a record of :func:`_pool_seeds`, over its seeds."""
    spread: Spread = run["spread"]
    return spread


def _epochs(run: Record) -> str:
    count = _spread(run).count
    return describe_epochs(run) + (f" (mean of {count} runs)" if count > 1 else "")


def _runs(runs: list[Record]) -> str:
    columns = ["run", "test error %", "mirrored %", "paper %", "training error %", "epochs", "seed"]
    columns += ["threads", "minutes", "images/s", "commit"]
    rows = [
        [
            f"[{run['name']}](../results/{run['name']}.json)",
            _percent(run["test_error"]),
            _percent(run.get("mirrored_error")),
            _percent(_paper_error(run)),
            _percent(run["train_error"]),
            describe_epochs(run),
            str(run["seed"]),
            describe_over_time(run, "threads"),
            f"{run['minutes']:.0f}",
            f"{run['images_per_second']:.0f}",
            describe_over_time(run, "commit"),
        ]
        for run in runs
    ]
    return make_table(columns, rows)


def _settings(runs: list[Record]) -> str:
    lines = []
    for run in runs:
        settings = ", ".join(f"{name} {value}" for name, value in run["settings"].items())
        lines.append(f"- **{run['name']}**: {describe_commands(run)}<br>{settings}")
    return "\n".join(lines)


def _twins(runs: list[Record]) -> str:
    """Networks next to their convolutional twins, trained with the same recipe on the same data."""
    rows = []
    for run in runs:
        twin_model = run["model"].replace("scn", "cnn")
        for twin in runs:
            if run["model"] != twin_model == twin["model"] and _recipe(run) == _recipe(twin):
                rows += [_twin_row(run), _twin_row(twin)]
    return make_table(["network", "data", "parameters", "test error %", "training error %", "epochs", "minutes"], rows)


def _recipe(run: Record) -> dict[str, Any]:
    """All settings that a network and its twin share."""
    other = ("model", "test_every", "checkpoint_seconds", "tensorboard")
    return {name: value for name, value in run["settings"].items() if name not in other}


def _twin_row(run: Record) -> list[str]:
    size, errors = f"{run['parameters']:,}", (_percent(run["test_error"]), _percent(run["train_error"]))
    return [_title(run["model"]), _data_title(run), size, *errors, describe_epochs(run), f"{run['minutes']:.0f}"]


def _widths(runs: list[Record]) -> str:
    columns = ["network", "parameters", "test error %", "training error %", "epochs", "paper, 200 epochs %"]
    rows = [
        [
            _title(run["model"]),
            f"{run['parameters']:,}",
            str(_spread(run)),
            _percent(run["train_error"]),
            _epochs(run),
            _percent(_paper_error(run)),
        ]
        for run in _of_each_width(runs)
    ]
    return make_table(columns, rows)


def _of_each_width(runs: list[Record]) -> list[Record]:
    """The paper's networks on CIFAR-10, slim to wide: the best recipe of each from random weights, with Muon.

    Longer runs are left out: only some widths have them, and epochs matter as much as width.
    """
    alike = [
        run
        for run in runs
        if run["data"] == "cifar10"
        and _paper_error(run) is not None
        and run["settings"].get("optimizer") == "muon"
        and find_start(run) is None
        and run["epochs"] <= _EPOCHS_OF_WIDTHS
    ]
    return sorted(_best(alike), key=lambda run: run["parameters"])


def _solvers(runs: list[Record]) -> str:
    rows = []
    for run, network in _networks(runs):
        for row in run.get("solvers", ()):
            rule = f"{row['max_iter']} steps" if row.get("max_iter") else f"tol {row['tol']:g}"
            values = (f"{row['images']:,}", _percent(row["error"]), _percent(row["other_answers"]))
            rows.append([network, row["solver"], rule, *values])
    columns = ["network", "solver", "stops at", "test images", "error %", "answers that differ from the first row's %"]
    return make_table(columns, rows)


def _storage(runs: list[Record]) -> str:
    rows = [
        [network, row["stored_as"], _percent(row["error"]), _percent(row["other_answers"])]
        for run, network in _networks(runs)
        for row in run.get("storage", ())
    ]
    return make_table(["network", "stored as", "test error %", "answers that differ %"], rows)


def _summary(runs: list[Record]) -> str:
    rows = [
        [
            f"{_architecture(run)} on {_data_title(run)}",
            f"{run['parameters'] / 1e6:.2f}M",
            str(_spread(run)),
            _percent(_paper_error(run)),
            _budget(run),
        ]
        for run in _best(runs)
    ]
    return make_table(["network", "parameters", "test error %", "paper %", "budget"], rows)


def _budget(run: Record) -> str:
    """What a run cost; the hours are its own, not those of the network it started from."""
    last = f" for the last {run['epochs']}" if find_start(run) is not None else ""
    threads = " or ".join(dict.fromkeys(describe_over_time(one, "threads") for one in run["pool"]))
    seeds = f", mean of {_spread(run).count} runs" if _spread(run).count > 1 else ""
    return f"{describe_epochs(run)} epochs, {run['minutes'] / 60:.1f} hours{last}, CPU threads: {threads}{seeds}"


def _times(runs: list[Record]) -> str:
    """How long the paper's largest network takes, from the first epoch to the last, there and here."""
    rows = []
    runs = [run for run in runs if find_start(run) is None]
    for data, (hours, seconds, epochs) in TIMES.items():
        for run in runs:
            if run["data"] == data and run["model"] == "scn4" and "evaluation_seconds" in run:
                threads = f"CPU, threads: {describe_over_time(run, 'threads')}"
                ours = [f"{run['minutes'] / 60:.1f}", f"{run['evaluation_seconds']:.0f}", str(run["epochs"])]
                rows.append([f"{_data_title(run)}, torchscn", threads, *ours])
        title = _DATA_TITLES[data]
        rows.append([f"{title}, paper", "four Tesla P40 GPUs", f"{hours}", f"{seconds}", str(epochs)])
    columns = ["SCN-4 on", "machine", "hours of training", "seconds for 10,000 test images", "epochs"]
    return make_table(columns, rows, n_texts=2)


def _paper_error(run: Record) -> float | None:
    """What the paper reports for this network on these images."""
    return None if "shortcuts" in run["settings"] else SCN_ERRORS.get((run["model"], run["data"]))


def _architecture(run: Record) -> str:
    kind = run["settings"].get("shortcuts")
    return f"{_title(run['model'])}, {kind} shortcuts" if kind else _title(run["model"])


def _title(model: str) -> str:
    return f"{model[:3].upper()}-{model[3:]}"


def _data_title(run: Record) -> str:
    name: str = run["data"]
    return _DATA_TITLES.get(name, name)


def _networks(runs: list[Record]) -> list[tuple[Record, str]]:
    """The runs, each with a name of its network; it tells the seed where several would be called the same."""
    names = [f"{_architecture(run)}, {_data_title(run)}, {_training(run)}" for run in runs]
    return [
        (run, f"{name}, seed {run['seed']}" if names.count(name) > 1 else name)
        for run, name in zip(runs, names, strict=True)
    ]


def _training(run: Record) -> str:
    return f"{describe_epochs(run)} epochs" + (", Muon" if run["settings"].get("optimizer") == "muon" else "")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _draw(runs: dict[str, Record], folder: Path) -> list[Path]:
    """Learning curves: one panel per data set with the best recipe of every network, and one picture for the widths."""
    folder.mkdir(parents=True, exist_ok=True)
    every = list(runs.values())
    chosen = {"curves": _by_data(_best(every)), "widths": _by_data(_of_each_width(every))}
    return [_draw_panels(panels, folder / f"{name}.png") for name, panels in chosen.items() if panels]


def _by_data(runs: list[Record]) -> dict[str, list[Record]]:
    """The runs by the title of their data set: the known ones in the order of the page, then others."""
    titles = [*_DATA_TITLES.values(), *map(_data_title, runs)]
    groups = {title: [run for run in runs if _data_title(run) == title] for title in dict.fromkeys(titles)}
    return {title: group for title, group in groups.items() if group}


def _points(run: Record, name: str) -> tuple[list[int], list[float]]:
    """Epochs and errors of a run's curve, where it has them: not every epoch is tested."""
    entries = [entry for entry in run["curve"] if name in entry]
    return [count_epochs_before(run) + entry["epoch"] for entry in entries], [entry[name] for entry in entries]


def _draw_panels(panels: dict[str, list[Record]], path: Path) -> Path:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    figure = Figure(figsize=(5.2 * len(panels), 5), layout="constrained")
    for axes, (title, runs) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for index, run in enumerate(runs):
            label = f"{_architecture(run)}, {_training(run)}: {_spread(run)} %"
            for number, one in enumerate(run["pool"]):
                tests = axes.plot(*_points(one, "test_error"), color=f"C{index}", label=None if number else label)
                # A dot at the end: a run that was tested only once has no line.
                tests[0].set(marker="o", markersize=4, markevery=slice(-1, None))
                axes.plot(*_points(one, "train_error"), color=f"C{index}", linestyle="--", linewidth=1)
        axes.set(xlabel="epoch", ylabel="error (%)", title=f"{title}: test (solid) and training (dashed)", yscale="log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        # Below the panel, where it hides no curve.
        axes.legend(title="last epoch, test", loc="upper center", bbox_to_anchor=(0.5, -0.15))
        axes.spines[["top", "right"]].set_visible(False)
    # No date or version inside: the same records give the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path
