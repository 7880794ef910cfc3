"""Damaged files: every kind the product reads back, mutated at random.

What may happen to a damaged file is: the same result as before, a documented error in one sentence that names the file,
or a documented fallback that is reported. Another exception, a hang, a huge allocation or a result that silently
differs is a failure. A case is repeated with :func:`replay`.
"""

import random
import tempfile
import time
from pathlib import Path

from tools.fuzz.data_files import data_kinds
from tools.fuzz.judge import problem_of
from tools.fuzz.kind import Kind
from tools.fuzz.outcome import Outcome, Report, Tally
from tools.fuzz.run_files import run_kinds

__all__ = ["replay", "run"]


def run(n_mutations: int, seed: int, report: Report) -> list[Outcome]:
    """Damage a file of every kind ``n_mutations`` times and read it back.

    Args:
        n_mutations: damaged files of each kind.
        seed: of the dice; the same number gives the same damage.
        report: is told about failures, and about every kind in one line.

    Returns:
        One outcome for each kind of file.
    """
    with tempfile.TemporaryDirectory() as folder:
        return [_run_kind(kind, n_mutations, seed, report) for kind in _all_kinds(Path(folder))]


def replay(title: str, case: int, seed: int) -> tuple[str, str | None]:
    """Repeat one case: what was done to the file, and what went wrong, if anything."""
    with tempfile.TemporaryDirectory() as folder:
        kind = next(kind for kind in _all_kinds(Path(folder)) if kind.title == title)
        return _run_case(kind, case, seed)


def _all_kinds(folder: Path) -> list[Kind]:
    return [*run_kinds(folder / "runs"), *data_kinds(folder / "data")]


def _run_kind(kind: Kind, n_mutations: int, seed: int, report: Report) -> Outcome:
    tally, started = Tally(kind.title, report), time.monotonic()
    untouched = problem_of(lambda: _read(kind, kind.good, case=0))
    tally.add("undamaged", untouched)
    for case in range(n_mutations):
        how, problem = _run_case(kind, case, seed)
        tally.add(f"case {case} of seed {seed} ({how})", problem)
    return tally.outcome(f"{time.monotonic() - started:.1f} s")


def _run_case(kind: Kind, case: int, seed: int) -> tuple[str, str | None]:
    how, content = kind.mutate(kind.good, random.Random(f"{seed}/{kind.title}/{case}"))
    return how, problem_of(lambda: _read(kind, content, case))


def _read(kind: Kind, content: bytes, case: int) -> None:
    for check in kind.checks:
        if case % check.every == 0:
            check.read(content)
