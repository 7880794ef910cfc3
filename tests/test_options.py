"""Options: checked once, changed by one rule."""

import dataclasses

import pytest

from torchscn.options import CodingOptions, LayerOptions, NetworkOptions, Options, choose_options


@pytest.mark.parametrize("kind", [Options, CodingOptions, LayerOptions, NetworkOptions])
def test_every_option_says_what_it_means(kind):
    assert all(entry.metadata["meaning"] for entry in dataclasses.fields(kind))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"tol": -1}, ValueError, "tol must be a number, at least 0; got -1"),
        ({"tol": "small"}, TypeError, "tol must be a number"),
        ({"max_iter": 0}, ValueError, "max_iter must be a whole number, at least 1"),
        ({"max_iter": 2.5}, TypeError, "max_iter must be a whole number"),
        ({"stop": "never"}, ValueError, "stop='never' is not known"),
        ({"per_atom": 1}, TypeError, "per_atom must be True or False"),
        ({"norm": "none"}, ValueError, "norm='none'"),
        ({"lam1": float("nan")}, ValueError, "lam1"),
        ({"downsample": (99,)}, ValueError, "downsample must list modules from 1 to 7, each at most once; got 99"),
        ({"downsample": (4, 4)}, ValueError, "each at most once; got 4, 4"),
        ({"downsample": (0,)}, ValueError, "from 1 to 7, each at most once; got 0"),
        ({"downsample": (4.5,)}, ValueError, "got 4.5"),
        ({"downsample": 4}, TypeError, r"downsample must list modules .* got 4 \(int\)"),
    ],
)
def test_bad_values(given, error, words):
    with pytest.raises(error, match=words):
        NetworkOptions(**given)
    with pytest.raises(error, match=words):
        NetworkOptions().change(**given)


@pytest.mark.parametrize("modules", [(), (1,), [7, 1], (4, 6)])
def test_modules_to_downsample(modules):
    assert NetworkOptions(downsample=modules).downsample == modules


def test_another_solver_takes_its_own_with_it():
    own = CodingOptions(solver="fista", tol=0.0, max_iter=50, grad="unrolled", lam1=0.1)
    changed = own.change(solver="coordinate")
    assert (changed.tol, changed.max_iter, changed.grad, changed.lam1) == (1e-2, None, "implicit", 0.1)
    assert own.change(solver="coordinate", max_iter=3).max_iter == 3
    assert own.change(solver="fista") == own


def test_another_tolerance_takes_its_cap_with_it():
    own = Options(solver="fista", tol=0.0, max_iter=50)
    assert own.change(tol=1e-3).max_iter is None
    assert own.change(tol=1e-3, max_iter=9).max_iter == 9
    assert own.change(tol=0.0) == own


def test_changes_come_one_after_the_other():
    assert choose_options("authors", {"max_iter": 20}, {"solver": "fista"}).max_iter == 20
    assert choose_options("authors", {"max_iter": 20}, {"solver": "auto"}).max_iter is None
    assert choose_options("authors", {"max_iter": None}).max_iter is None


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match=r"there is no option 'max_iters'\. Did you mean 'max_iter'"):
        Options().change(max_iters=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().tol = 1.0


def test_none_counts_as_not_given_where_it_is_no_value():
    changed = choose_options("authors", {"tol": None, "stem": None, "solver": None})
    assert changed == choose_options("authors")
    assert choose_options("authors", {"max_iter": None}).max_iter is None
