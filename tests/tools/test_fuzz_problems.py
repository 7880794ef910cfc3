"""A short run of the fuzz suite for solvers and layers, and a check that it would notice a lie."""

import dataclasses

import numpy as np
import pytest
import torch

import torchscn
from tools.fuzz import layers, solvers
from tools.fuzz.problems import FAMILIES, draw, solve_exactly
from torchscn.solvers import SOLVERS


def test_no_solver_lies(capsys):
    outcomes = solvers.run(480, 0, print)
    assert {outcome.title.split(",")[0] for outcome in outcomes} == set(torchscn.list_solvers())
    for outcome in outcomes:
        assert outcome.failures == 0, outcome.problems
    assert "480 of 480" not in capsys.readouterr().err


def test_layers_keep_their_bounds(monkeypatch):
    monkeypatch.setattr(layers, "SHAPES", ((1, 16), (3, 64), (8, 32)))
    results = layers.run(layers.KINDS, 8, lambda line: None)
    assert len(results) == 18
    for result in results:
        assert min(result.converged, result.within) >= 0.999, result
        assert result.cosine >= 0.99, result  # the page asks for more, of more positions


def test_a_lie_is_noticed(monkeypatch):
    """A solver that stops after two sweeps and calls it done."""

    def lie(problem, options):
        result = SOLVERS["coordinate"](problem, dataclasses.replace(options, tol=0.0, max_iter=2))
        return result._replace(converged=torch.ones_like(result.converged))

    monkeypatch.setitem(SOLVERS, "liar", lie)
    tally = solvers.Tally()
    for seed in range(30):
        solvers._try_case("liar", seed, tally)
    assert tally.lies > 20


@pytest.mark.parametrize("seed", range(len(FAMILIES)))
def test_the_oracle_is_right(seed):
    """Its codes satisfy the optimality conditions of the problem as it is given."""
    case = draw(seed, np.float64)
    exact = solve_exactly(case)
    if case.family == "signals 1e-20 to 1e20":
        return  # in the units of each signal, which it checks itself
    x, D, lam1 = (torch.from_numpy(part) for part in (case.x, case.dictionary, case.lam1))
    residual = torchscn.kkt_residual(x, D, torch.from_numpy(exact.codes), lam1, case.lam2)
    scale = float((x.abs() @ D.abs().T).max())
    assert residual[exact.known].max() <= 1e-8 * scale
