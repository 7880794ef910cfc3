"""What came of many random cases of one kind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Outcome", "Report", "Tally"]

Report = Callable[[str], None]
"""Takes one line at a time; ``print`` will do."""

LONGEST = 300  # characters of a problem that are kept


@dataclass(frozen=True)
class Outcome:
    """How many cases were tried, how many went wrong, and how to repeat those."""

    title: str
    cases: int
    failures: int
    note: str = ""
    problems: Sequence[str] = ()  # one line for each failure: the case, and what was wrong


class Tally:
    """Counts the cases of one kind as they are tried, and reports failures at once."""

    def __init__(self, title: str, report: Report):
        self.title, self.report = title, report
        self.cases = 0
        self.problems: list[str] = []

    def add(self, case: str, problem: str | None) -> None:
        """Count a case; ``problem`` says what was wrong with it, if anything."""
        self.cases += 1
        if problem is not None:
            self.problems.append(f"{case}: {' '.join(problem.split())[:LONGEST]}")
            self.report(f"FAILED {self.title}, {self.problems[-1]}")

    def outcome(self, note: str = "") -> Outcome:
        """The sum of it all, reported in one line."""
        self.report(f"{self.title}: {self.cases} cases, {len(self.problems)} failures{f' ({note})' if note else ''}")
        return Outcome(self.title, self.cases, len(self.problems), note, tuple(self.problems))
