"""Damaged files, killed trainings, full disks: short versions of ``python -m tools.fuzz``, and tests of its judges."""

import json
import random
import sys
from pathlib import Path

import pytest

from tools.fuzz import disk, files, kills
from tools.fuzz.judge import Refused, Wrong, check_command, check_sentence, problem_of, read_or_refuse
from tools.fuzz.kind import Check, Kind
from tools.fuzz.mutations import mutate_bytes, mutate_json, mutate_lines, mutate_text
from tools.fuzz.outcome import Outcome, Tally

PATH = Path("folder/file.json")


def problems(outcomes: list[Outcome]) -> list[str]:
    return [f"{outcome.title}: {problem}" for outcome in outcomes for problem in outcome.problems]


def test_damaged_files():
    outcomes = files.run(8, seed=3, report=lambda line: None)
    assert problems(outcomes) == []
    assert {outcome.cases for outcome in outcomes} == {9}
    assert len(outcomes) > 20


def test_killed_trainings():
    outcomes = kills.run(4, seed=0, report=lambda line: None)
    assert problems(outcomes) == []
    assert sum(outcome.cases for outcome in outcomes) == 4


def test_full_disks(monkeypatch):
    shorter = {"checkpoint": ("checkpoint.next.safetensors.tmp", (4_096,)), "metrics": ("metrics.jsonl.tmp", (10,))}
    monkeypatch.setattr(disk, "WRITTEN", shorter)
    outcomes = disk.run(lambda line: None)
    assert problems(outcomes) == []
    assert [outcome.cases for outcome in outcomes] == [2, 2, 10]


def fail(error: Exception):
    raise error


def test_only_documented_errors_that_name_the_file_are_accepted():
    assert read_or_refuse(lambda: 3, PATH, ValueError) == 3
    assert isinstance(read_or_refuse(lambda: fail(ValueError(f"{PATH} is bad.")), PATH, ValueError), Refused)
    for wrong in (f"{PATH}\nis bad.", "it is bad.", f"{PATH} is {'very ' * 300}bad."):
        with pytest.raises(Wrong):
            check_sentence(wrong, PATH)
    with pytest.raises(Wrong, match="JSONDecodeError"):
        read_or_refuse(lambda: json.loads("{"), PATH, ValueError)
    assert problem_of(lambda: read_or_refuse(lambda: {}["x"], PATH, ValueError)) == "KeyError: 'x'"


def test_a_hang_is_noticed(monkeypatch):
    monkeypatch.setattr("tools.fuzz.judge.LONGEST_SECONDS", 0.1)

    def hang() -> None:
        while True:
            pass

    assert "nothing after" in problem_of(hang)


def test_commands_end_in_one_sentence():
    def command(arguments: list[str]) -> None:
        print(arguments[1], file=sys.stderr)
        sys.exit(int(arguments[0]))

    assert check_command(command, ["0", ""], PATH)
    assert not check_command(command, ["1", f"scn: {PATH} is bad."], PATH)
    for arguments in (["2", f"scn: {PATH} is bad."], ["1", ""], ["1", f"Traceback\n{PATH}"], ["1", "scn: it is bad."]):
        with pytest.raises(Wrong):
            check_command(command, arguments, PATH)


def test_a_silent_difference_is_reported_with_what_repeats_it():
    def read(content: bytes) -> None:
        if content != b"good content":
            raise Wrong("another network")

    kind = Kind("example", b"good content", mutate_bytes, (Check(read),))
    lines: list[str] = []
    outcome = files._run_kind(kind, 20, seed=1, report=lines.append)
    assert 15 < outcome.failures < outcome.cases == 21
    assert outcome.problems[0].startswith("case 0 of seed 1 (")
    assert len(lines) == outcome.failures + 1
    assert files._run_case(kind, 0, seed=1) == files._run_case(kind, 0, seed=1)


@pytest.mark.parametrize("mutate", [mutate_bytes, mutate_text, mutate_json, mutate_lines])
def test_every_mutation_works_and_is_repeatable(mutate):
    content = b'{"a": {"b": [1, "two", null]}, "c": 3.5}\n{"a": {}}\n'[: None if mutate is mutate_lines else 41]
    first, again = ([mutate(content, random.Random(seed)) for seed in range(300)] for _ in range(2))
    assert first == again
    assert len({changed for _, changed in first}) > 150


def test_tallies_add_up():
    tally = Tally("title", lambda line: None)
    tally.add("one", None)
    tally.add("two", "bad\nluck")
    assert tally.outcome("note") == Outcome("title", 2, 1, "note", ("two: bad luck",))
