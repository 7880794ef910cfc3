"""What tables show of a result."""

from typing import Any, NamedTuple

from torchscn.bench.gpu.result_file import Result
from torchscn.bench.gpu.steps import OUT_OF_MEMORY

__all__ = ["StepRow", "count_passed", "failed_checks", "has_failures", "step_rows"]


class StepRow(NamedTuple):
    """One measurement, readable."""

    network: str
    mode: str
    precision: str
    kernel: str
    time: str  # or what went wrong
    images_per_second: str
    ratio: str  # to the time of the twin
    memory: str
    failed: bool


def failed_checks(result: Result) -> list[dict[str, Any]]:
    """The checks that were not passed; each says why."""
    return [{"problem": "no reason given"} | check for check in result["checks"] if not check["passed"]]


def has_failures(result: Result) -> bool:
    """Whether a check or a measurement failed; a device that is too small for a network is no failure."""
    problems = {step.get("problem") for step in result["steps"]} - {None, OUT_OF_MEMORY}
    return bool(failed_checks(result) or problems)


def count_passed(result: Result) -> str:
    """How many checks were passed, of how many."""
    return f"{sum(check['passed'] for check in result['checks'])} of {len(result['checks'])}"


def step_rows(result: Result) -> list[StepRow]:
    """All measurements, with what follows from them."""
    twins = {_place(step): step.get("seconds") for step in result["steps"] if step["kernel"] == "none"}
    return [_row(step, twins.get(_place(step)), result["batch"]) for step in result["steps"]]


def _place(step: dict[str, Any]) -> tuple[str, str, str]:
    """What a network and its twin have in common."""
    return step["network"][-1], step["mode"], step["precision"]


def _row(step: dict[str, Any], twin_seconds: float | None, batch: int) -> StepRow:
    seconds, memory = step.get("seconds"), step.get("peak_mebibytes")
    named = (step["network"], step["mode"], step["precision"], "-" if step["kernel"] == "none" else step["kernel"])
    peak = "-" if memory is None else f"{memory:,.0f} MiB"
    if seconds is None:
        return StepRow(*named, step["problem"], "-", "-", peak, failed=True)
    ratio = "-" if twin_seconds is None else f"{seconds / twin_seconds:.2f}x"
    return StepRow(*named, f"{1e3 * seconds:.2f} ms", f"{batch / seconds:,.0f}", ratio, peak, failed=False)
