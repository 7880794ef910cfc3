"""Problems with a Gram matrix each, in plain torch; ``cpu/active_set.h`` has it in C++, one problem at a time."""

import torch
from torch import Tensor

from torchscn.kernels.rule import NOT_CONVEX, SweepRule, VanishingAtomError
from torchscn.problem import OnSupport, Problem, Result

__all__ = ["torch_active_set"]


@torch.no_grad()
def torch_active_set(problem: Problem, rule: SweepRule) -> Result:
    """The active-set method of Lawson and Hanson on all problems at once: exact, whatever the tolerance of the rule."""
    if problem.rhs.numel() == 0:
        return Result(torch.empty_like(problem.rhs), problem.is_finite(), 0, 0.0)
    energy, finite = problem.energy(), problem.is_finite()
    norms = torch.where(energy > 0, energy.sqrt(), 1.0)
    gram = (problem.gram / norms[:, :, None] / norms[:, None, :]).nan_to_num(0, 0, 0)
    if bool((energy < 0).any()) or bool((gram.abs() > 1 + _rounding(gram)).any()):
        raise ValueError(f"{NOT_CONVEX}.")  # no two atoms have a product larger than that of their norms
    search = _Search(gram, (problem.linear() / norms).nan_to_num(0, 0, 0), energy > 0)
    if isinstance(problem.constraint, OnSupport):
        search.solve_on_support(problem.constraint.mask > 0)
        done, n_iter = torch.ones_like(finite), 1
    else:
        if bool(
            ((energy <= torch.finfo(gram.dtype).tiny / torch.finfo(gram.dtype).eps) & (problem.linear() > 0)).any()
        ):
            raise VanishingAtomError
        done, n_iter = search.descend(rule.max_iter)
    codes = torch.where(finite[:, None], search.codes / norms, torch.nan)
    return Result(problem.finish(codes), done & finite, n_iter, float(n_iter))


def _rounding(values: Tensor) -> float:
    """What a product of atoms of norm 1 may be off by."""
    return 32 * torch.finfo(values.dtype).eps * (values.shape[-1] + 8)


class _Search:
    """Codes of problems whose atoms have norm 1, and their supports."""

    def __init__(self, gram: Tensor, right: Tensor, usable: Tensor):
        self.gram, self.right, self.usable = gram, right, usable
        self.codes, self.free = torch.zeros_like(right), torch.zeros_like(usable)
        self.barred = torch.zeros_like(usable)  # atoms that could not move, until another one has joined

    def gradient(self) -> Tensor:
        return self.right - (self.gram @ self.codes[:, :, None]).squeeze(-1)

    def solve_on_support(self, mask: Tensor) -> None:
        """Codes on a support; the second time for what rounding has left."""
        self.free = mask & self.usable
        for _ in range(2):
            self.codes = self.codes + self._step()

    def descend(self, max_iter: int) -> tuple[Tensor, int]:
        """Which problems are solved, and the steps that took."""
        entering = self._free_another(torch.ones_like(self.free[:, 0]))
        n_iter, settled = 0, ~self.free.any(-1)
        while n_iter < max_iter and bool(self.free.any()):
            arrived = self._move()
            joined = arrived & (self.codes.gather(-1, entering) > 0).squeeze(-1)
            self.barred = self.barred & ~joined[:, None]
            before = self.free
            following = self._free_another(arrived)
            entering = torch.where(arrived[:, None], following, entering)
            settled = arrived & (before == self.free).all(-1)
            n_iter += 1
            if bool(settled.all()):
                break
        self._polish()
        return settled, n_iter

    def _polish(self) -> None:
        """Once more at the end, for what rounding and the ridge have left, where all codes stay positive."""
        for _ in range(2):
            moved = self.codes + self._step()
            allowed = ((moved > 0) | ~self.free).all(-1, keepdim=True)
            self.codes = torch.where(allowed & self.free, moved, self.codes)

    def _useful(self) -> Tensor:
        """Atoms off the support that lower the objective beyond rounding."""
        size = self.right.abs() + self.codes.sum(-1, keepdim=True)
        above = self.gradient() > 8 * torch.finfo(size.dtype).eps * size
        return above & ~self.free & ~self.barred & self.usable

    def _free_another(self, arrived: Tensor) -> Tensor:
        """Free the best atom of the problems that have arrived; returns it."""
        useful = self._useful() & arrived[:, None]
        best = torch.where(useful, self.gradient(), -torch.inf).argmax(-1, keepdim=True)
        self.free = self.free | torch.zeros_like(self.free).scatter(-1, best, useful.any(-1, keepdim=True))
        return best

    def _move(self) -> Tensor:
        """Go to the optimum on the support, or to where the first code becomes zero; returns who has arrived."""
        step = self._step()
        blocked = self.free & (self.codes + step <= 0)
        part = torch.where(blocked, torch.where(self.codes > 0, -self.codes / step, 0.0), 1.0)
        length = part.amin(-1, keepdim=True)
        leaving = blocked & (part <= length)
        self.barred = self.barred | (leaving & (length == 0))
        self.free = self.free & ~leaving
        self.codes = torch.where(self.free, self.codes + length * step, 0.0)
        return ~blocked.any(-1)

    def _step(self) -> Tensor:
        """``G_SS^-1`` times the gradient, zero off the support."""
        free = self.free.to(self.gram.dtype)
        system = self.gram * free[:, :, None] * free[:, None, :]
        diagonal = torch.where(self.free, 16 * torch.finfo(free.dtype).eps, 1.0).to(free.dtype)
        factor, failures = torch.linalg.cholesky_ex(system + torch.diag_embed(diagonal))
        if bool((failures > 0).any()):
            stronger = torch.diag_embed(torch.where(self.free, _rounding(free), 1.0).to(free.dtype))
            factor, failures = torch.linalg.cholesky_ex(system + stronger)
            if bool((failures > 0).any()):
                raise ValueError(f"{NOT_CONVEX}.")
        return torch.cholesky_solve((self.gradient() * free)[:, :, None], factor).squeeze(-1)
