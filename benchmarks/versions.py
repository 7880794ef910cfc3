"""Compare the speed of two installed versions of torchscn, each in its own Python environment.

    python benchmarks/versions.py OLD_PYTHON NEW_PYTHON --rounds 10 --threads 2 --json versions.json

OLD_PYTHON and NEW_PYTHON are Python interpreters with a torchscn installed. Fresh processes of the two take turns, and
the order is swapped from round to round; the best time of each counts. First the old version is measured against
itself: how far that ratio is from 1 shows the noise of the machine. Run nothing else meanwhile.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEASUREMENTS = {
    "import": "import torchscn",
    "first-call": "first sparse_code, torch and torchscn imported",
    "start": "import torchscn to the end of the first sparse_code",
    "small-forward": "sparse_code, 64 x 144, 16 atoms",
    "small-backward": "the same with backward",
    "scn1-training": "training step of scn1, batch 128",
    "scn1-inference": "inference of scn1, batch 128",
    "scn4-training": "training step of scn4, batch 128",
    "scn4-inference": "inference of scn4, batch 128",
}
REPETITIONS = {"scn1": 6, "scn4": 3}
SMALL_REPETITIONS, SMALL_CALLS = 40, 20  # best of this many means, each over this many calls

Times = dict[str, float]
Rounds = dict[str, list[float]]


# What follows runs in the interpreters under test, so it uses only public names that all versions have.


def measure(names: list[str], threads: int) -> Times:
    """Times in seconds of the measurements ``names``; must be the first to import torch in its process."""
    times, small_inputs = _measure_start(threads)
    if "small-forward" in names:
        times["small-forward"] = _small_time(_small_forward(*small_inputs))
    if "small-backward" in names:
        times["small-backward"] = _small_time(_small_backward(*small_inputs))
    for model, repetitions in REPETITIONS.items():
        for mode, make_step in (("training", _training_step), ("inference", _inference_step)):
            if f"{model}-{mode}" in names:
                times[f"{model}-{mode}"] = _best_time(make_step(model), repetitions)
    return {name: times[name] for name in names}


def _measure_start(threads: int) -> tuple[Times, tuple[Any, Any]]:
    """The one-time costs of a process; also returns the inputs of the small calls."""
    start = time.perf_counter()
    import torchscn

    imported = time.perf_counter()
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, dictionary = torch.randn(64, 144), torch.randn(16, 144) / 12
    ready = time.perf_counter()
    torchscn.sparse_code(x, dictionary, 0.1, 1e-3)
    done = time.perf_counter()
    times = {"import": imported - start, "first-call": done - ready, "start": done - start}
    return times, (x, dictionary)


def _small_forward(x: Any, dictionary: Any) -> Callable[[], object]:
    from torchscn import sparse_code

    return lambda: sparse_code(x, dictionary, 0.1, 1e-3)


def _small_backward(x: Any, dictionary: Any) -> Callable[[], object]:
    from torchscn import sparse_code

    x, dictionary = x.clone().requires_grad_(), dictionary.clone().requires_grad_()

    def run() -> None:
        x.grad = dictionary.grad = None
        sparse_code(x, dictionary, 0.1, 1e-3).sum().backward()

    return run


def _training_step(name: str) -> Callable[[], object]:
    import torch

    model, x, labels = _network(name)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return run


def _inference_step(name: str) -> Callable[[], object]:
    import torch

    model, x, _ = _network(name)
    model.eval()

    def run() -> None:
        with torch.inference_mode():
            model(x)

    return run


def _network(name: str) -> tuple[Any, Any, Any]:
    """A network, images in the layout of training, and labels; always the same."""
    import torch

    import torchscn

    torch.manual_seed(0)
    x = torch.randn(128, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    return torchscn.create_model(name), x, torch.randint(10, (128,))


def _best_time(run: Callable[[], object], repetitions: int) -> float:
    """Seconds of the fastest of several runs, after one that does not count."""
    run()
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def _small_time(run: Callable[[], object]) -> float:
    """Seconds of one call, too short to be timed alone."""

    def run_many() -> None:
        for _ in range(SMALL_CALLS):
            run()

    return _best_time(run_many, SMALL_REPETITIONS) / SMALL_CALLS


# What follows runs in the interpreter that was started.


def compare(
    title: str, interpreters: dict[str, Path], names: list[str], rounds: int, threads: int
) -> dict[str, Rounds]:
    """Times of every round for each of two interpreters, which take turns; progress is shown on stderr."""
    found: dict[str, Rounds] = {label: {name: [] for name in names} for label in interpreters}
    for number in range(1, rounds + 1):
        labels = list(interpreters) if number % 2 else list(reversed(interpreters))
        for label in labels:
            print(f"{title}: round {number} of {rounds}, {label}", file=sys.stderr, flush=True)
            for name, seconds in measure_in(interpreters[label], names, threads).items():
                found[label][name].append(seconds)
    return found


def measure_in(python: Path, names: list[str], threads: int) -> Times:
    """The measurements, in a fresh process of another interpreter."""
    command = [str(python), str(Path(__file__).resolve()), "--worker", ",".join(names), "--threads", str(threads)]
    times: Times = json.loads(_output_of(python, command, threads))
    return times


def identify(python: Path) -> dict[str, str]:
    """Versions of torchscn and torch in an interpreter, and the location of torchscn.

    Raises:
        RuntimeError: the interpreter does not run or has no torchscn.
    """
    code = (
        "import importlib.util, json, sys\n"
        "from importlib.metadata import version\n"
        "spec = importlib.util.find_spec('torchscn')\n"
        "if spec is None: sys.exit('it has no torchscn installed')\n"
        "print(json.dumps({'torchscn': version('torchscn'), 'torch': version('torch'), 'place': spec.origin}))\n"
    )
    found: dict[str, str] = json.loads(_output_of(python, [str(python), "-c", code], threads=1))
    return found


def _output_of(python: Path, command: list[str], threads: int) -> str:
    # A PYTHONPATH would put the same torchscn before both of the installed ones, and the working folder might.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": str(threads), "PYTHONSAFEPATH": "1"}
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(f"{python} cannot be run: {error.strerror}.") from error
    if result.returncode:
        problem = result.stderr.strip().splitlines() or [f"it ended with code {result.returncode}"]
        raise RuntimeError(f"{python} cannot be measured: {problem[-1]}")
    return result.stdout


def make_rows(noise: dict[str, Rounds], comparison: dict[str, Rounds]) -> list[dict[str, Any]]:
    """Best times, the ratio of new to old, and the ratio of old to old."""
    rows = []
    for name in comparison["old"]:
        old, new = min(comparison["old"][name]), min(comparison["new"][name])
        again = min(noise["old again"][name]) / min(noise["old"][name])
        rows.append({"name": name, "old": old, "new": new, "ratio": new / old, "noise": again})
    return rows


def format_table(rows: list[dict[str, Any]]) -> str:
    """The rows as a readable table."""
    lines = [f"{'measurement':52} {'old':>10} {'new':>10} {'new/old':>8} {'old/old':>8}"]
    for row in rows:
        times = f"{_readable(row['old']):>10} {_readable(row['new']):>10}"
        lines.append(f"{MEASUREMENTS[row['name']]:52} {times} {row['ratio']:8.3f} {row['noise']:8.3f}")
    return "\n".join(lines)


def _readable(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 100 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1e6:.3g} us"


def choose_names(only: list[str] | None) -> list[str]:
    """The measurements whose names begin with one of ``only``; all if it is None.

    Raises:
        ValueError: no name begins with one of ``only``.
    """
    for start in only or ():
        if not any(name.startswith(start) for name in MEASUREMENTS):
            raise ValueError(f"there is no measurement {start!r}; there are {', '.join(MEASUREMENTS)}.")
    return [name for name in MEASUREMENTS if only is None or name.startswith(tuple(only))]


def run_comparison(options: argparse.Namespace) -> None:
    names = choose_names(options.only)
    interpreters = {"old": options.old, "new": options.new}
    installed = {label: identify(python) for label, python in interpreters.items()}
    for label, found in installed.items():
        print(f"{label}: torchscn {found['torchscn']}, torch {found['torch']}, {found['place']}")
    same = {"old": options.old, "old again": options.old}
    noise = compare("old against old", same, names, options.rounds, options.threads)
    comparison = compare("old against new", interpreters, names, options.rounds, options.threads)
    rows = make_rows(noise, comparison)
    print(format_table(rows))
    if options.json is not None:
        about = {"installed": installed, "rounds": options.rounds, "threads": options.threads}
        result = about | {"rows": rows, "noise": noise, "comparison": comparison}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> None:
    """Compare two versions, or act as one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?", metavar="OLD_PYTHON", help="interpreter with the old version")
    parser.add_argument("new", type=Path, nargs="?", metavar="NEW_PYTHON", help="interpreter with the new version")
    parser.add_argument("--rounds", type=int, default=10, help="processes of each version in each comparison")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help=f"names or their beginnings: {', '.join(MEASUREMENTS)}"
    )
    parser.add_argument("--json", type=Path, help="also write all times to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        print(json.dumps(measure(options.worker.split(","), options.threads)))
        return
    if options.old is None or options.new is None:
        parser.error("name two Python interpreters: OLD_PYTHON NEW_PYTHON")
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    try:
        run_comparison(options)
    except (RuntimeError, ValueError, OSError) as error:
        sys.exit(f"versions.py: {error}")


if __name__ == "__main__":
    main()
