"""Writes ``docs/trust.md``: the promises stand in ``trust.md`` beside this file, what was found is put into it."""

import argparse
from pathlib import Path

from tools.fuzz.outcome import Outcome
from torchscn.environment import describe_environment

__all__ = ["write_page"]

TEMPLATE = Path(__file__).with_name("trust.md")
HEADINGS = {
    "solvers": ("problems", "lies or wrong gradients"),
    "layers": ("positions", "layers that miss a bound"),
    "constraints": ("problems", "lies"),
    "kernel": ("builds", "failures"),
    "files": ("mutations", "silent differences, or other errors than a sentence"),
    "kills": ("kills", "runs that end in other weights"),
    "disk": ("writes", "failures"),
}


def write_page(path: Path, found: dict[str, list[Outcome]], options: argparse.Namespace) -> None:
    """Put the tables into the text."""
    text = TEMPLATE.read_text()
    for name, outcomes in found.items():
        text = text.replace(f"<!-- {name} -->", _table(outcomes, *HEADINGS[name]))
    path.write_text(text.replace("<!-- environment -->", _environment(options)))


def _table(outcomes: list[Outcome], cases: str, failures: str) -> str:
    lines = [f"| | {cases} | {failures} | |", "|---|---:|---:|---|"]
    lines += [f"| {o.title} | {o.cases:,} | {o.failures} | {o.note} |" for o in outcomes]
    return "\n".join(lines)


def _environment(options: argparse.Namespace) -> str:
    facts = describe_environment()
    return f"{facts['processor']}, kernel {facts['kernel']}, torch {facts['torch']}, seed {options.seed}"
