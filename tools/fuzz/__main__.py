"""``python -m tools.fuzz``: try everything hard, and write what came of it to ``docs/trust.md``."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tools.fuzz import constraints, disk, files, kernel, kills, layers, solvers
from tools.fuzz.outcome import Outcome
from tools.fuzz.page import write_page

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts, or those named; 1 if anything failed."""
    options = _parse(arguments)
    torch.set_num_threads(options.threads)
    report = _Report()
    parts: dict[str, Callable[[], list[Outcome]]] = {
        "solvers": lambda: solvers.run(options.problems, options.seed, report),
        "constraints": lambda: constraints.run(options.problems, options.seed, report),
        "layers": lambda: layers.outcomes(report),
        "kernel": lambda: kernel.run(report),
        "files": lambda: files.run(options.mutations, options.seed, report),
        "kills": lambda: kills.run(options.kills, options.seed, report),
        "disk": lambda: disk.run(report),
    }
    chosen = options.only or list(parts)
    found = {name: parts[name]() for name in chosen}
    if not options.only:
        write_page(PAGE, found, options)
    failures = [problem for outcomes in found.values() for outcome in outcomes for problem in outcome.problems]
    for problem in failures:
        print(problem)
    n_failed = sum(outcome.failures for outcomes in found.values() for outcome in outcomes)
    print(f"{n_failed} failures")
    return 1 if n_failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--problems", type=int, default=10_000, help="for every solver (default 10,000)")
    parser.add_argument("--mutations", type=int, default=500, help="of every kind of file (default 500)")
    parser.add_argument("--kills", type=int, default=50, help="of a training (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="other random cases (default 0)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default 2)")
    parts = ("solvers", "constraints", "layers", "kernel", "files", "kills", "disk")
    parser.add_argument("--only", nargs="+", choices=parts, help="these parts; the page stays as it is")
    return parser.parse_args(arguments)


class _Report:
    """Prints a line now and then, with the time since the start."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"[{time.monotonic() - self.start:6.0f} s] {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
