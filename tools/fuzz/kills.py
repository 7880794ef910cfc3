"""Killed trainings: SIGKILL at any moment, resumed, and compared with one that was left alone, bit for bit."""

import json
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tools.fuzz.child import Fault, Finished, run_command, start_command
from tools.fuzz.outcome import Outcome, Report, Tally
from torchscn.training.run_folder import RunFolder

__all__ = ["run"]

# The recipe of the demo, made small: a checkpoint after each of its 8 steps, so that many kills meet one being written.
SETTINGS = (
    *("--epochs", "2", "--limit", "128", "--validation", "32", "--stem", "1", "--width", "1", "--ema", "0.9"),
    *("--checkpoint-seconds", "0", "--threads", "1"),
)
# How the names of files end at which a run is killed: how often it opens, flushes, renames or removes them, and how
# likely they are to be chosen. What ends in .tmp is being written.
TOUCHED = {
    ".tmp": (24, 4),
    ".safetensors": (16, 3),
    "config.json.tmp": (3, 1),
    "environment.json.tmp": (3, 1),
    "metrics.jsonl.tmp": (3, 1),
    "model.safetensors.tmp": (3, 1),
    "curves.png.tmp": (3, 1),
}
LARGEST_FILE = 600_000
KILLED = -9
MOST_PER_RUN = 25  # kills, before a run is left to finish
UNLIKE = ("seconds", "evaluation_seconds", "images_per_second")  # metrics that differ from run to run


@dataclass(frozen=True)
class _Expected:
    """What a run that was left alone leaves behind."""

    model: bytes
    metrics: list[dict[str, object]]
    names: set[str]
    seconds: float


def run(n_kills: int, seed: int, report: Report) -> list[Outcome]:
    """Kill trainings ``n_kills`` times in all.

    Args:
        n_kills: kills; the runs they hit are resumed until they finish.
        seed: of the dice that say when. A kill by the clock hits another place on another machine.
        report: is told about failures, and about the outcome.

    Returns:
        One outcome for kills by the clock, one for kills at a file operation and one for power failures, where what was
        not flushed is lost.
    """
    dice, started = random.Random(seed), time.monotonic()
    tallies = {kind: Tally(title, report) for kind, title in _TITLES.items()}
    with tempfile.TemporaryDirectory() as scratch:
        expected = _undisturbed(Path(scratch))
        n_done = n_runs = 0
        while n_done < n_kills:
            n_runs += 1
            n_done += _run_with_kills(Path(scratch), n_runs, n_kills - n_done, expected, dice, tallies)
    note = f"{n_runs} runs in {time.monotonic() - started:.0f} s"
    return [tally.outcome(note) for tally in tallies.values()]


_TITLES = {
    "clock": "trainings killed at random moments",
    "kill": "trainings killed at a file operation",
    "tear": "trainings that lose power at a file operation",
}


def _command(folder: Path) -> list[str]:
    resume = ["--resume"] if RunFolder(folder).has_checkpoint() else []
    return ["train", "digits", *SETTINGS, "--run-dir", str(folder), *resume]


def _undisturbed(scratch: Path) -> _Expected:
    run_command(["info"], scratch)  # the first process waits for torch to be loaded
    folder, started = scratch / "undisturbed", time.monotonic()
    ended = run_command(_command(folder), scratch)
    if ended.code != 0:
        raise RuntimeError(f"the training that was left alone failed: {ended.complaints}")
    return _Expected(*_left_behind(folder), time.monotonic() - started)


def _left_behind(folder: Path) -> tuple[bytes, list[dict[str, object]], set[str]]:
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    alike = [{name: value for name, value in entry.items() if name not in UNLIKE} for entry in metrics]
    return (folder / "model.safetensors").read_bytes(), alike, {path.name for path in folder.iterdir()}


def _run_with_kills(
    scratch: Path, number: int, n_left: int, expected: _Expected, dice: random.Random, tallies: dict[str, Tally]
) -> int:
    """One run, killed and resumed until it finishes; returns the number of cases: its kills."""
    folder = scratch / f"run-{number}"
    kills: list[tuple[str, str]] = []
    ended = Finished(KILLED, "")
    while ended.code == KILLED and len(kills) < min(n_left, MOST_PER_RUN):
        kind = dice.choice(list(tallies))
        ended, how = _clock(folder, scratch, expected, dice) if kind == "clock" else _fault(folder, scratch, kind, dice)
        if ended.code == KILLED:
            kills.append((kind, how))
    if ended.code == KILLED:
        ended = run_command(_command(folder), scratch)
    problem = _difference(folder, expected) if ended.code == 0 else f"exit code {ended.code}: {ended.complaints}"
    if problem is not None and not kills:
        kills = [("clock", "never")]
    for n, (kind, how) in enumerate(kills, 1):
        # Which kill did it is not known; all of them are needed to repeat it.
        history = "; ".join(f"{kind}: {how}" for kind, how in kills) if n == len(kills) else how
        tallies[kind].add(f"run {number}, kill {n} ({history})", problem if n == len(kills) else None)
    return len(kills)


def _clock(folder: Path, scratch: Path, expected: _Expected, dice: random.Random) -> tuple[Finished, str]:
    """Kill a training after some time."""
    seconds = dice.uniform(0, 0.5 * expected.seconds)
    process, log = start_command(_command(folder), scratch)
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode is not None
    return Finished(process.exitcode, log.read_text(errors="replace")), f"{seconds:.3f} s"


def _fault(folder: Path, scratch: Path, kind: str, dice: random.Random) -> tuple[Finished, str]:
    """Kill a training just before it does something with a file of its folder that is not complete yet."""
    names = [name for name in TOUCHED if name.endswith(".tmp")] if kind == "tear" else list(TOUCHED)
    (name,) = dice.choices(names, [TOUCHED[name][1] for name in names])
    fault = Fault(kind, name, dice.randint(1, TOUCHED[name][0]), dice.randrange(LARGEST_FILE))
    return run_command(_command(folder), scratch, fault), f"{kind} at touch {fault.nth} of *{name}, {fault.size} bytes"


def _difference(folder: Path, expected: _Expected) -> str | None:
    """How a finished run differs from the one that was left alone, if it does."""
    model, metrics, names = _left_behind(folder)
    if model != expected.model:
        return "it arrived at another network"
    if metrics != expected.metrics:
        return "it wrote other metrics"
    return None if names == expected.names else f"other files: {sorted(names ^ expected.names)}"
