"""The problem and its constraints."""

import pytest
import torch
from problems import random_dictionary, signals
from torch.testing import assert_close

import torchscn
from torchscn.constraints import CONSTRAINTS, NonNegative, OnSupport
from torchscn.problem import Affine, Problem, gram_matrix, normal_form


def make(constraint, n_atoms=6):
    D, x = random_dictionary(n_atoms, 9), signals(8, 9)
    return Problem(x @ D.T, gram_matrix(D, 0.01), torch.full((n_atoms,), 0.1, dtype=x.dtype), constraint=constraint)


def constraints(n_atoms=6):
    mask = (torch.rand(8, n_atoms, dtype=torch.float64) > 0.5).double()
    return [NonNegative(), OnSupport(mask)]


@pytest.mark.parametrize("index", [0, 1])
def test_a_constraint_travels_as_kind_and_tensors(index):
    constraint = constraints()[index]
    again = CONSTRAINTS[constraint.kind](*constraint.tensors())
    codes = torch.randn(8, 6, dtype=torch.float64)
    assert_close(again.project(codes), constraint.project(codes))


@pytest.mark.parametrize("index", [0, 1])
def test_projection_atom_by_atom_is_projection(index):
    constraint = constraints()[index]
    codes = torch.randn(8, 6, dtype=torch.float64)
    columns = [constraint.project_atom(codes[:, atom], atom) for atom in range(6)]
    assert_close(torch.stack(columns, -1), constraint.project(codes))


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("solver", torchscn.list_solvers())
def test_every_solver_reaches_the_optimum_under_every_constraint(index, solver, kernel):
    problem = make(constraints()[index])
    result = torchscn.solvers.SOLVERS[solver](problem, torchscn.Options(solver, tol=1e-11))
    assert result.converged.all()
    assert problem.residual(result.codes).max() < 1e-9
    assert_close(problem.constraint.project(result.codes), result.codes)


@pytest.mark.parametrize("solver", torchscn.list_solvers())
def test_affine_finish(solver, kernel):
    problem = make(NonNegative())
    options = torchscn.Options(solver, tol=1e-11)
    codes = torchscn.solvers.SOLVERS[solver](problem, options).codes
    affine = Affine(torch.linspace(1, 2, 6).double(), torch.linspace(-1, 1, 6).double())
    finished = Problem(problem.rhs.clone(), problem.gram, problem.shift, affine=affine, in_place=True)
    assert_close(torchscn.solvers.SOLVERS[solver](finished, options).codes, codes * affine.scale + affine.offset)


def test_residual_is_that_of_the_dense_problem():
    D, x = random_dictionary(6, 9), signals(8, 9)
    codes = torch.rand(8, 6, dtype=torch.float64)
    rhs, gram = normal_form(x, D, 0.1, 0.01)
    assert_close(Problem(rhs, gram).residual(codes), torchscn.kkt_residual(x, D, codes, 0.1, 0.01))


def test_unknown_constraint():
    with pytest.raises(ValueError, match="Did you mean 'non_negative'"):
        CONSTRAINTS["nonnegative"]
