import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from torchscn.bench import draw, load_results, print_table, run_suite, save_results, suites

ROOT = Path(__file__).parent.parent.parent
RESULT = {
    "suite": "scaling",
    "about": "a test",
    "machine": {"threads": 2, "kernel": "torch", "torch": "2"},
    "rounds": 1,
    "rows": [{"over": over, "n": n, "seconds": n / 10} for over in ("atoms", "signals", "threads") for n in (1, 2)],
}


def test_results_are_kept_printed_and_drawn(tmp_path):
    save_results(tmp_path / "results", RESULT)
    assert load_results(tmp_path / "results") == {"scaling": json.loads(json.dumps(RESULT))}
    console = Console(record=True, width=100)
    print_table(RESULT, console)
    assert "200.00 ms" in console.export_text()
    files = draw(tmp_path / "results", tmp_path / "drawn")
    assert {path.name for path in files} == {"tables.md", "scaling.png"}
    assert "| atoms | 2 | 200.00 ms |" in (tmp_path / "drawn" / "tables.md").read_text()
    with pytest.raises(ValueError, match="no benchmark results"):
        load_results(tmp_path / "drawn")


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "{}", json.dumps(RESULT | {"rows": [{"n": "x"}]})])
def test_damaged_results_are_named(tmp_path, text):
    save_results(tmp_path, RESULT).write_text(text)
    with pytest.raises(ValueError, match=r"scaling\.json is not"):
        load_results(tmp_path)


def test_results_stand_beside_the_machine_they_were_measured_on(monkeypatch):
    def nothing(rounds):
        """Measures nothing."""
        return [{"name": "nothing", "seconds": float(rounds)}]

    monkeypatch.setitem(suites.SUITES, "nothing", nothing)
    result = run_suite("nothing", rounds=3)
    assert list(result["machine"]) == ["processor", "system", "threads", "kernel", "torch", "torchscn"]
    assert result["about"] == "Measures nothing."
    assert result["rows"] == [{"name": "nothing", "seconds": 3.0}]


def test_kept_results_of_earlier_versions_can_be_drawn(tmp_path):
    files = draw(ROOT / "benchmarks" / "results", tmp_path)
    assert {path.name for path in files} == {"tables.md", "networks.png", "scaling.png"}


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    save_results(tmp_path, RESULT)
    with pytest.raises(ValueError, match=r"pip install torchscn\[plot\]"):
        draw(tmp_path, tmp_path / "drawn")
