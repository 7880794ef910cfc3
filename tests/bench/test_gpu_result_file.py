import json
import math

import pytest
from gpu_results import made_up_result
from rich.console import Console

from torchscn.bench.gpu import load_result, load_results, print_result, save_result, step_rows
from torchscn.bench.gpu.summary import count_passed, has_failures

RESULT = made_up_result()
FAILED = made_up_result(
    checks=[*RESULT["checks"], {"name": "bad", "kernel": "triton", "passed": False, "problem": "x"}]
)


def test_what_is_saved_is_loaded(tmp_path):
    path = save_result(tmp_path / "new", RESULT)
    assert path.name == "gpu-imaginary-9000-2001-02-03-0405.json"
    assert load_result(path) == RESULT
    assert load_results(path.parent) == [RESULT]
    assert load_results(tmp_path / "nowhere") == []


def test_what_no_file_can_hold_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        save_result(tmp_path, made_up_result(took_seconds=math.nan))


def steps(**changes):
    return [*RESULT["steps"][:2], RESULT["steps"][1] | changes]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not readable JSON"),
        ("[]", "must be a table"),
        ({}, "'format' is missing"),
        (RESULT | {"format": 2}, "its format is 2, this version reads 1"),
        (RESULT | {"date": "yesterday"}, "'date' must be a date"),
        (RESULT | {"date": "2001-02-03|04:05"}, "'date' must be a date"),
        (RESULT | {"device": RESULT["device"] | {"name": "<script>"}}, "'device', 'name' must be plain words"),
        (RESULT | {"device": RESULT["device"] | {"name": "a | b"}}, "'device', 'name' must be plain words"),
        (RESULT | {"device": RESULT["device"] | {"name": "long" * 99}}, "'device', 'name' must be plain words"),
        (RESULT | {"versions": RESULT["versions"] | {"driver": "1\n2"}}, "'versions', 'driver' must be plain words"),
        (RESULT | {"versions": {}}, "'versions', 'torchscn' is missing"),
        (RESULT | {"batch": 0}, "'batch' and 'rounds' must be at least 1"),
        (RESULT | {"checks": [{"name": "a", "kernel": "triton", "passed": 1}]}, "'passed' must be true or false"),
        (RESULT | {"checks": [{"name": "a", "kernel": "|", "passed": True}]}, "'checks', entry 1, 'kernel' must be"),
        (RESULT | {"steps": steps(network="scn9")}, "'steps', entry 3, 'network' must be one of scn1"),
        (RESULT | {"steps": steps(mode="sleeping")}, "'mode' must be one of training, inference"),
        (RESULT | {"steps": steps(precision="int4")}, "'precision' must be one of float32, bfloat16"),
        (RESULT | {"steps": steps(kernel="magic")}, "'kernel' must be one of none, triton, torch"),
        (RESULT | {"steps": steps(seconds=0.0)}, "'seconds' must be above 0"),
        (RESULT | {"steps": steps(seconds=math.nan)}, "'seconds' must be a number"),
        (RESULT | {"steps": steps(problem="both")}, "must have either 'seconds' or 'problem'"),
    ],
)
def test_malformed_files_are_named(tmp_path, content, reason):
    path = tmp_path / "sent.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=r"sent\.json is not ") as error:
        load_results(tmp_path)
    assert reason in str(error.value)


def test_tables_compare_with_the_twin():
    twin, ours, too_large = step_rows(RESULT)
    assert (twin.time, twin.ratio, twin.kernel) == ("10.00 ms", "1.00x", "-")
    assert (ours.time, ours.ratio, ours.images_per_second, ours.memory) == ("15.00 ms", "1.50x", "8,533", "120 MiB")
    assert (too_large.time, too_large.ratio, too_large.failed) == ("out of memory", "-", True)


def test_without_the_twin_there_is_no_ratio():
    assert [row.ratio for row in step_rows(made_up_result(steps=RESULT["steps"][1:2]))] == ["-"]


def test_failures_are_told_from_devices_that_are_too_small():
    crashed = [RESULT["steps"][0], RESULT["steps"][2] | {"problem": "RuntimeError: no"}]
    assert not has_failures(RESULT)
    assert has_failures(FAILED)
    assert has_failures(made_up_result(steps=crashed))
    assert count_passed(FAILED) == "1 of 2"


def test_failures_are_printed_in_red():
    console = Console(record=True, width=120, force_terminal=True, color_system="standard")
    print_result(FAILED | {"triton_problem": "too [red]old\x1b"}, console)
    out = console.export_text(styles=True)
    assert "\x1b[31mFAILED: bad: x" in out
    assert "\x1b[31m1 of 2 checks passed" in out
    assert "plain torch stands in: too [red]old\\x1b" in out
    assert "Imaginary 9000" in out
    assert "1.50x" in out
