import sys

import pytest
import torch

from torchscn.bench import run_suite, suites
from torchscn.bench.problems import DenseProblem, ManyMatrices, Unmixing


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """A problem that takes no time."""
    monkeypatch.setattr(suites, "DENSE", DenseProblem(n_signals=16, n_features=12, n_atoms=8))
    monkeypatch.setattr(suites, "UNMIXING", Unmixing(n_pixels=20))
    monkeypatch.setattr(suites, "MANY_MATRICES", (ManyMatrices(3, 4, 6),))


def measured() -> list[str]:
    return [row["name"] for row in run_suite("solvers", rounds=1)["rows"]]


def test_every_solver_is_measured_with_its_error(capsys):
    rows = {row["name"]: row for row in run_suite("solvers", rounds=1)["rows"]}
    assert rows["coordinate, tol 2e-3"]["ratio"] == 1
    assert rows["coordinate, tol 1e-6"]["error"] < 1e-5
    assert {"SPAMS lasso", "scikit-learn lasso_cd", "scikit-learn, 30 passes"} <= rows.keys()
    assert capsys.readouterr().err == ""


def test_non_negative_least_squares_with_their_errors():
    rows = run_suite("nnls", rounds=1)["rows"]
    pixels = {row["name"]: row for row in rows if "pixels" in row["problem"]}
    matrices = {row["name"]: row for row in rows if "matrices" in row["problem"] and "gradients" not in row}
    assert pixels["sparse_code, tol 1e-8"]["error"] < 1e-6
    assert pixels["scipy nnls in a loop"]["error"] < 1e-10
    assert pixels["SPAMS lasso"]["error"] < 1e-3
    assert matrices["nonneg_qp"]["error"] < 1e-10
    assert matrices["scipy nnls in a loop"]["error"] < 1e-10
    assert next(row["name"] for row in rows if "gradients" in row) == "nonneg_qp"


@pytest.mark.parametrize(
    ("module", "missing", "package"),
    [("spams", "SPAMS", "spams-bin"), ("sklearn", "scikit-learn", "scikit-learn")],
)
def test_a_competitor_that_is_not_installed_is_left_out(monkeypatch, capsys, module, missing, package):
    monkeypatch.setitem(sys.modules, module, None)
    names = measured()
    assert "FISTA, 50 steps" in names
    assert not any(name.startswith(missing) for name in names)
    assert len(names) >= 5
    assert capsys.readouterr().err == f"{missing} is left out because it is not installed: pip install {package}\n"


def test_threads_are_left_as_they_were(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(suites, "_normal_form", lambda n_signals, n_atoms: (torch.ones(4, 2), torch.eye(2)))
    run_suite("scaling", rounds=1)
    assert torch.get_num_threads() == before
