"""The checks of a kernel pass for a good one and find what is wrong with a bad one; plain torch stands in for a GPU."""

import os
from dataclasses import replace

import pytest
import torch

from torchscn.bench.gpu import checks
from torchscn.bench.gpu.cases import CheckCase, list_cases
from torchscn.bench.gpu.checks import check_codes, check_gradients, check_network, check_reads, list_checks, run_check
from torchscn.bench.gpu.judge import Check, are_bit_equal, full_precision, largest_error, run_twice
from torchscn.bench.gpu.kernel import describe_error, find_kernel_problem, kernel_in_force
from torchscn.bench.gpu.problems import TWISTS, CheckProblem, exact_codes
from torchscn.bench.problems import ImageBatch
from torchscn.constraints import Bounds, OnSupport
from torchscn.solvers import SOLVERS

CPU = torch.device("cpu")
CODES = CheckCase(CheckProblem(9, 20))
GRADIENTS = CheckCase(CheckProblem(9, 20), "gradients", tol=1e-5)


def check(case: CheckCase) -> Check:
    function = check_codes if case.what == "codes" else check_gradients
    return run_check(str(case), lambda kernel, device: function(case, kernel, device), "torch", CPU)


@pytest.fixture
def break_solver(monkeypatch):
    """Makes a solver wrong while the kernel under test is in force: in what it returns, or in what it is given."""

    def breaking(change=lambda result, problem: result, before=lambda problem: problem, name="coordinate"):
        good = SOLVERS[name]

        def bad(problem, options):
            if os.environ["TORCHSCN_KERNEL"] != "torch":  # the reference
                return good(problem, options)
            return change(good(before(problem), options), problem)

        monkeypatch.setitem(SOLVERS, name, bad)

    return breaking


def scaled_code(result, problem, row, factor):
    """One signal's codes a little off."""
    codes = result.codes.clone()
    codes[row] *= factor
    return result._replace(codes=codes)


@pytest.mark.parametrize("case", list_cases(sizes=(9, 20), special_sizes=(17,), few=20, many=70), ids=str)
def test_a_good_kernel_passes(case):
    found = check(case)
    assert found.problem is None
    assert found.error is not None
    assert found.error < 5
    assert found.bit_equal
    assert found.converged is (None if case.what == "gradients" else True)


def test_every_kernel_configuration_is_on_the_list():
    cases = list_cases()
    assert {case.problem.n_atoms for case in cases} >= {9, 16, 33, 64, 144, 256, 512}
    plain = {(c.problem.n_atoms, c.problem.constraint, c.problem.n_signals > 12_800, c.stop) for c in cases}
    for n_atoms in (9, 16, 33, 64, 144, 256):
        for constraint in ("non_negative", "bounds", "on_support"):
            found = {place[2:] for place in plain if place[:2] == (n_atoms, constraint)}
            assert found == {(False, "signal"), (False, "block"), (True, "signal"), (True, "block")}
    assert {case.problem.twist for case in cases} == set(TWISTS)
    assert len(list_checks()) == len(cases) + 2  # no two have the same name


@pytest.mark.parametrize("row", [0, 18])
@pytest.mark.parametrize("stop", ["signal", "block"])
def test_a_single_wrong_code_is_found(break_solver, row, stop):
    break_solver(lambda result, problem: scaled_code(result, problem, row, 1.02))
    found = check(replace(CODES, stop=stop))
    assert "two runs" not in found.problem
    assert "10 are promised" in found.problem
    assert found.error > 10
    assert found.as_row()["passed"] is False


def test_a_code_that_should_be_zero_is_found(break_solver):
    assert not exact_codes(CODES.problem)[-1].any()
    break_solver(lambda result, problem: result._replace(codes=result.codes + 1e-6))
    assert "10 are promised" in check(CODES).problem


def test_codes_called_converged_too_early_are_found(monkeypatch):
    good = SOLVERS["coordinate"]

    def hasty(problem, options):
        result = good(problem, replace(options, max_iter=2))
        return result._replace(converged=problem.is_finite())

    monkeypatch.setitem(SOLVERS, "coordinate", hasty)
    found = check(CODES)
    assert found.converged
    assert found.error > 10


def test_signals_that_do_not_converge_are_found(break_solver):
    break_solver(lambda result, problem: result._replace(converged=result.converged & (torch.arange(20) > 2)))
    found = check(CODES)
    assert found.converged is False
    assert found.problem == "3 of 18 signals did not converge"


@pytest.mark.parametrize("case", [CODES, GRADIENTS], ids=str)
def test_runs_that_differ_in_the_last_bit_are_found(break_solver, case):
    calls = []

    def racing(result, problem):
        calls.append(1)
        last_bit = 1 + torch.finfo(torch.float32).eps * (len(calls) % 3 == 1)
        return scaled_code(result, problem, 4, last_bit)

    break_solver(racing)
    found = check(case)
    assert found.bit_equal is False
    assert found.problem == "two runs differ"


def test_flags_that_differ_between_runs_are_found(break_solver):
    calls = []

    def flickering(result, problem):
        calls.append(1)
        return result._replace(converged=result.converged & (torch.arange(20) != 4 * len(calls)))

    break_solver(flickering)
    assert check(CODES).bit_equal is False


def test_signals_that_are_not_finite_must_be_marked(break_solver):
    break_solver(lambda result, problem: result._replace(codes=result.codes.nan_to_num()))
    assert check(CODES).problem == "signals that are not finite are not marked"


def test_a_bad_signal_that_spoils_its_neighbour_is_found(break_solver):
    break_solver(lambda result, problem: scaled_code(result, problem, 7, torch.nan))
    assert "more than any number" in check(CODES).problem


@pytest.mark.parametrize(
    ("case", "before"),
    [
        (replace(CODES, problem=CheckProblem(9, 20, twist="shift")), lambda problem: replace(problem, shift=None)),
        (replace(CODES, problem=CheckProblem(9, 20, twist="affine")), lambda problem: replace(problem, affine=None)),
        (
            replace(CODES, problem=CheckProblem(9, 20, "bounds")),
            lambda problem: replace(problem, constraint=Bounds(*problem.constraint.tensors()[:2], torch.zeros(9))),
        ),
        (
            replace(CODES, problem=CheckProblem(9, 20, "on_support")),
            lambda problem: replace(problem, constraint=OnSupport(problem.constraint.mask.roll(1, 0))),
        ),
    ],
    ids=["shift", "affine", "threshold", "mask"],
)
def test_a_kernel_that_ignores_something_is_found(break_solver, case, before):
    break_solver(before=before)
    assert "10 are promised" in check(case).problem


def test_wrong_gradients_of_right_codes_are_found(break_solver):
    def wrong_on_support(result, problem):
        is_gradient = isinstance(problem.constraint, OnSupport)
        return scaled_code(result, problem, 5, 1.001) if is_gradient else result

    break_solver(wrong_on_support)
    assert check(CODES).passed
    assert "10 are promised" in check(GRADIENTS).problem


def test_wrong_supports_are_found(break_solver):
    break_solver(lambda result, problem: result._replace(codes=result.codes.roll(1, 0)))
    assert "have the exact support" in check(GRADIENTS).problem


def test_an_error_is_an_outcome(break_solver):
    def crash(problem):
        raise RuntimeError("an illegal memory access\nwas encountered")

    break_solver(before=crash)
    found = check(CODES)
    assert found.problem == "RuntimeError: an illegal memory access was encountered"
    assert found.as_row() == {"name": str(CODES), "kernel": "torch", "problem": found.problem, "passed": False}


def test_a_whole_network(monkeypatch, break_solver):
    monkeypatch.setattr(checks, "ImageBatch", lambda batch, size: ImageBatch(2, 8))
    found = run_check("network", check_network, "torch", CPU)
    assert found.problem is None
    assert found.error < 5
    break_solver(lambda result, problem: result._replace(codes=1.01 * result.codes), name="auto")
    assert "10 are promised" in run_check("network", check_network, "torch", CPU).problem


class PretendedDevice:
    """The CPU, called a GPU."""

    type = "cuda"


def test_reading_back_is_found(monkeypatch):
    modes = []

    def step(*_):
        if modes == ["error"]:
            raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr(checks, "_scores_and_gradients", step)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, device: module)
    monkeypatch.setattr(checks, "ImageBatch", lambda batch, size: Movable())
    assert "synchronizing" in run_check("reads", check_reads, "triton", PretendedDevice()).problem
    assert modes == ["error", "default"]
    assert run_check("reads", check_reads, "torch", PretendedDevice()).passed


class Movable:
    """Tensors that can be moved to a pretended device."""

    def make(self):
        return self, self

    def to(self, device):
        return self


def test_signals_of_large_batches_are_repeated_but_not_in_the_same_places():
    problem = CheckProblem(5, 2100, "on_support", "warm start")
    made, exact = problem.make(), exact_codes(problem)
    assert made.rhs.shape == made.init.shape == made.constraint.mask.shape == exact.shape == (2100, 5)
    assert are_bit_equal(made.rhs[:1009], made.rhs[1009:2018])
    assert 1009 % 32


def test_the_kernel_under_test_is_in_force_in_both_runs():
    seen = []
    run_twice(lambda: seen.append(os.environ["TORCHSCN_KERNEL"]), "generic", torch.zeros(3))
    assert seen == ["generic", "generic"]


def test_what_is_around_the_kernel_is_exact_and_deterministic():
    def settings():
        cudnn = torch.backends.cudnn
        return cudnn.enabled, cudnn.allow_tf32, cudnn.deterministic, torch.get_float32_matmul_precision()

    before = settings()
    with full_precision():
        assert settings() == (True, False, True, "highest")
    assert settings() == before != (True, False, True, "highest")


def test_errors_are_relative_to_a_signal_or_to_its_neighbours():
    exact = torch.tensor([[1.0], [100.0]])
    assert largest_error(exact + 1, exact) == 1
    assert largest_error(exact + 1, exact, by_block=True) == pytest.approx(2**0.5 / 100, rel=1e-3)
    assert largest_error(exact * torch.nan, exact) == float("inf")
    assert largest_error(exact[:0], exact[:0]) == 0


def test_the_kernel_is_chosen_for_a_while(monkeypatch):
    monkeypatch.delenv("TORCHSCN_KERNEL", raising=False)
    with kernel_in_force("torch"):
        assert os.environ["TORCHSCN_KERNEL"] == "torch"
    assert "TORCHSCN_KERNEL" not in os.environ
    monkeypatch.setenv("TORCHSCN_KERNEL", "generic")
    with pytest.raises(KeyError), kernel_in_force("torch"):
        raise KeyError
    assert os.environ["TORCHSCN_KERNEL"] == "generic"


def test_a_kernel_that_cannot_be_used_says_why():
    assert find_kernel_problem("torch", CPU) is None
    assert "'nonsense' is not a kernel" in find_kernel_problem("nonsense", CPU)
    assert len(describe_error(ValueError("long " * 1000))) == 300
