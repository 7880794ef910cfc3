"""Everything a kernel is checked for."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torchscn.bench.gpu.problems import CheckProblem
from torchscn.options import Options

__all__ = ["CheckCase", "list_cases"]

_SIZES = (1, 9, 16, 33, 64, 144, 256, 512)  # a kernel for 16 atoms at most, one for more by blocks of 16, up to 512
_SPECIAL_SIZES = (16, 33, 64)
_FEW = 131  # signals, in small tiles; the last tile is not full
_MANY = 12_803  # signals, in large tiles
_STOPS = ("signal", "block")
_LOOSER = 5.0  # tolerance of the linear system of a gradient, relative to that of the codes
_LARGE = 145  # atoms from which gradients of many signals in float64 take too long


@dataclass(frozen=True)
class CheckCase:
    """One thing to check, at one size."""

    problem: CheckProblem
    what: str = "codes"  # or "gradients"
    stop: str = "signal"
    solver: str = "coordinate"  # takes no exact steps, which would hide mistakes in the sweeps
    tol: float = 1e-4

    def __str__(self) -> str:
        problem = self.problem
        parts = (f"{problem.n_signals:,} signals", problem.constraint, problem.twist, self.solver)
        about = ", ".join(part for part in parts if part)
        return f"{self.what} of {problem.n_atoms} atoms, {about}, tol {self.tol:g} by {self.stop}"

    def options(self) -> Options:
        """How the kernel is asked to solve it."""
        looser = _LOOSER if self.problem.constraint == "on_support" else 1.0
        return Options(self.solver, self.tol * looser, stop=self.stop)


def list_cases(
    sizes: Iterable[int] = _SIZES, special_sizes: Iterable[int] = _SPECIAL_SIZES, few: int = _FEW, many: int = _MANY
) -> list[CheckCase]:
    """Every size with every constraint, stopping rule and tile, and special cases for some sizes of each kernel."""
    cases = []
    for n_atoms in sizes:
        for n_signals in (few, many):
            for constraint in ("non_negative", "bounds", "on_support"):
                problem = CheckProblem(n_atoms, n_signals, constraint)
                cases += [CheckCase(problem, stop=stop) for stop in _STOPS]
                if constraint != "on_support" and (n_atoms < _LARGE or n_signals == few):
                    cases += [CheckCase(problem, "gradients", stop, tol=1e-5) for stop in _STOPS]
    for n_atoms in special_sizes:
        cases += _special_cases(n_atoms, few)
    return cases


def _special_cases(n_atoms: int, n_signals: int) -> list[CheckCase]:
    problem = CheckProblem(n_atoms, n_signals)
    signed = replace(problem, constraint="signed")
    shifted, many_atoms = replace(problem, twist="shift"), replace(problem, twist="many atoms")
    twists = ("shift", "warm start", "affine", "dim and bright signals", "own bounds", "zero atom", "uneven atoms")
    return [
        *(CheckCase(replace(problem, twist=twist)) for twist in twists),
        CheckCase(replace(problem, constraint="on_support", twist="dim and bright signals")),
        CheckCase(signed),
        CheckCase(replace(signed, twist="warm start"), stop="block"),
        CheckCase(signed, "gradients", tol=1e-5),
        CheckCase(shifted, "gradients", tol=1e-5),
        CheckCase(shifted, stop="block", tol=1e-2),
        CheckCase(replace(problem, n_signals=1)),
        CheckCase(problem, solver="auto", tol=1e-6),
        *(CheckCase(many_atoms, stop=stop, solver="auto", tol=1e-2) for stop in _STOPS),
    ]
