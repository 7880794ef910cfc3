"""The benchmarks measure what they say: competitors solve the same problem, results are kept and drawn."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from torch.testing import assert_close

from torchscn import SparseCoding2d, create_model
from torchscn.bench import draw, load_results, print_table, save_results
from torchscn.bench.competitors import scikit_learn, spams_lasso
from torchscn.bench.competitors.authors import AuthorsLayer, replace_layers
from torchscn.bench.competitors.fused_fista import fused_fista
from torchscn.bench.competitors.unrolled import two_steps
from torchscn.bench.problems import DenseProblem, layer_sizes
from torchscn.bench.timing import best_times, peak_memory
from torchscn.functional import sparse_code
from torchscn.objective import normal_form


def test_dense_competitors_solve_the_same_problem():
    problem = DenseProblem(n_signals=40, n_features=30, n_atoms=12)
    x, D = problem.make()
    exact = sparse_code(x, D, 0.0, problem.lam2, solver="active_set")
    assert_close(fused_fista(*normal_form(x, D, 0.0, problem.lam2), n_steps=500), exact, atol=1e-3, rtol=1e-3)
    assert_close(spams_lasso.solve(*spams_lasso.prepare(x, D), problem.lam2, 1), exact, atol=1e-3, rtol=1e-3)
    sklearn_codes = scikit_learn.solve(*scikit_learn.prepare(x, D, problem.lam2), 1000)
    assert_close(sklearn_codes, exact, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("stride", [1, 2])
def test_authors_layer_is_the_same_layer(stride):
    ours = SparseCoding2d(4, 6, stride=stride, lam1=0.05, lam2=0.05, tol=1e-6)
    theirs = AuthorsLayer(copy.deepcopy(ours))
    x = torch.randn(2, 4, 7, 9)
    results = []
    for layer in (ours, theirs):
        leaf = x.clone().requires_grad_()
        codes = layer(leaf)
        codes.square().sum().backward()
        results.append((codes.detach(), leaf.grad, layer.dictionary.grad, layer.lam1.grad))
    for a, b in zip(*results, strict=True):
        assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_networks_take_other_layers():
    x = torch.randn(2, 3, 8, 8)
    for make in (AuthorsLayer, two_steps):
        model = replace_layers(create_model("scn1"), make)
        model(x).sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_layer_sizes_are_those_of_the_network():
    assert [str(size) for size in layer_sizes(1)] == [
        "3 to 16, 32 x 32",
        "16 to 16, 32 x 32",
        "32 to 32, 16 x 16",
        "64 to 64, 8 x 8",
    ]


def test_timing_takes_turns_and_spares_slow_ones(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    order = []

    def slow():
        order.append("slow")
        for _ in range(10):
            next(clock)

    times = best_times({"quick": lambda: order.append("quick"), "slow": slow}, rounds=3, slow=5)
    assert order == ["quick", "slow", "quick", "quick"]
    assert times == {"quick": 1, "slow": 11}


def test_peak_memory_is_of_the_code_alone():
    small, large = peak_memory("x = 1\n"), peak_memory("x = bytearray(200 * 2**20)\n")
    assert 190 < large - small < 230


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


def test_unknown_suite_is_explained():
    result = subprocess.run([sys.executable, "-m", "torchscn", "bench", "network"], capture_output=True, text=True)
    assert result.returncode == 1
    assert "Did you mean 'networks'?" in result.stderr
