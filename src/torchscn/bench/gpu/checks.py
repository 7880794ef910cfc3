"""A kernel against float64 on the CPU: codes, gradients, and a whole network."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from torchscn.bench.gpu.cases import CheckCase, list_cases
from torchscn.bench.gpu.judge import Check, are_bit_equal, full_precision, judge, largest_error, run_twice
from torchscn.bench.gpu.kernel import describe_error, kernel_in_force
from torchscn.bench.gpu.problems import convert, exact_codes
from torchscn.bench.problems import ImageBatch
from torchscn.gradients import implicit
from torchscn.models import create_model
from torchscn.options import Options
from torchscn.problem import Problem, Result
from torchscn.solvers import SOLVERS

__all__ = ["CheckRun", "check_codes", "check_gradients", "check_network", "check_reads", "list_checks", "run_check"]

CheckRun = Callable[[str, torch.device], Check]
"""Checks something for a kernel, by its name, on a device."""

_LEAST_AGREEING = 0.9  # of the signals, with the exact support
_NETWORK_TOL = 1e-4
_EXACT_TOL = 1e-12
_READS_NOTHING = "a step reads nothing back"


def list_checks() -> dict[str, CheckRun]:
    """Every check by its name."""
    checks: dict[str, CheckRun] = {str(case): _checker(case) for case in list_cases()}
    return checks | {"the trained SCN-1": check_network, _READS_NOTHING: check_reads}


def _checker(case: CheckCase) -> CheckRun:
    check = {"codes": check_codes, "gradients": check_gradients}[case.what]
    return lambda kernel, device: check(case, kernel, device)


def run_check(name: str, check: CheckRun, kernel: str, device: torch.device) -> Check:
    """Run a check; an error is one of its possible outcomes, so that the others can go on."""
    try:
        with full_precision():
            return check(kernel, device)
    except Exception as error:  # whatever a compiler or a driver may raise
        return Check(name, kernel, problem=describe_error(error))


def check_codes(case: CheckCase, kernel: str, device: torch.device) -> Check:
    """Codes where they converged, and whether they did; signals that are not finite must be marked."""
    problem, exact = convert(case.problem.make(), device, torch.float32), exact_codes(case.problem)
    first, second = run_twice(lambda: _solve(problem, case.options()), kernel, problem.rhs)
    finite = problem.is_finite().cpu()
    codes, converged = first.codes.cpu().double(), first.converged.cpu()
    # Relative to the codes, not to what was added to them.
    offset = 0.0 if problem.affine is None else problem.affine.offset.cpu().double()
    counted = converged & finite
    error = largest_error((codes - offset)[counted], (exact - offset)[counted], case.stop == "block")
    bit_equal = are_bit_equal(first.codes, second.codes) and torch.equal(first.converged, second.converged)
    is_marked = bool(codes[~finite].isnan().all()) and not bool(converged[~finite].any())
    n_failed = int((finite & ~converged).sum())
    return judge(
        Check(str(case), kernel, converged=n_failed == 0, bit_equal=bit_equal),
        error / case.tol,
        f"{n_failed:,} of {int(finite.sum()):,} signals did not converge" if n_failed else None,
        None if is_marked else "signals that are not finite are not marked",
    )


def _solve(problem: Problem, options: Options) -> Result:
    return SOLVERS[options.solver](problem, options)


def check_gradients(case: CheckCase, kernel: str, device: torch.device) -> Check:
    """Gradients in right-hand side, Gram matrix and shift, of signals whose support is the exact one.

    Entries next to the border of the support may be on its other side in codes that are as accurate as promised.
    """
    everything = case.problem.make()
    finite = everything.is_finite()
    on_cpu, exact = everything.take(finite.nonzero().squeeze(-1)), exact_codes(case.problem)[finite]
    problem, in_double = convert(on_cpu, device, torch.float32), convert(on_cpu, "cpu", torch.float64)
    with kernel_in_force(kernel):
        support = problem.constraint.movable(_solve(problem, case.options()).codes) > 0
    agreeing = (support.cpu() == (in_double.constraint.movable(exact) > 0)).all(-1)
    incoming = torch.randn(exact.shape, generator=torch.Generator().manual_seed(1)) * agreeing[:, None]
    first, second = run_twice(lambda: _gradients(problem, case.options(), incoming), kernel, problem.rhs)
    with kernel_in_force("auto"):
        expected = _gradients(in_double, Options("active_set"), incoming)
    bit_equal = all(are_bit_equal(one, other) for one, other in zip(first, second, strict=True))
    share = float(agreeing.double().mean())
    return judge(
        Check(str(case), kernel, bit_equal=bit_equal),
        _gradient_error(first, expected, exact, case.stop == "block") / case.tol,
        None if share >= _LEAST_AGREEING else f"only {100 * share:.0f}% of the signals have the exact support",
    )


def _gradients(problem: Problem, options: Options, incoming: Tensor) -> list[Tensor]:
    """Gradients in right-hand side, Gram matrix and, if there is one, shift."""
    rhs, gram = (tensor.clone().requires_grad_() for tensor in (problem.rhs, problem.gram))
    shift = None if problem.shift is None else problem.shift.clone().requires_grad_()
    codes = implicit(replace(problem, rhs=rhs, gram=gram, shift=shift), options)
    leaves = [rhs, gram] if shift is None else [rhs, gram, shift]
    return list(torch.autograd.grad(codes, leaves, incoming.to(codes)))


def _gradient_error(found: list[Tensor], expected: list[Tensor], codes: Tensor, by_block: bool) -> float:
    """The largest relative error of any of the gradients."""
    of_rhs, *others = (tensor.cpu().double() for tensor in found)
    lengths = expected[0].norm(dim=1)
    # The gradient in the matrix sums products of two vectors, each as accurate as promised; that in the shift sums one.
    sizes = (2 * (lengths * codes.norm(dim=1)).sum(), lengths.sum())
    of_sums = [(own - exact).norm() / size for own, exact, size in zip(others, expected[1:], sizes, strict=False)]
    worst_sum = float(torch.stack(of_sums).nan_to_num(math.inf).amax())
    return max(largest_error(of_rhs, expected[0], by_block), worst_sum)


def check_network(kernel: str, device: torch.device) -> Check:
    """Scores and gradients of a trained network: convolutions, layouts and norms around the kernel.

    There is no promise for a whole network; in a trained one errors hardly grow, so the same limit holds.
    """
    x, labels = ImageBatch(batch=8, size=16).make()
    model = create_model("scn1", pretrained="cifar10", tol=_NETWORK_TOL).to(device)
    first, second = run_twice(lambda: _scores_and_gradients(model, x.to(device), labels.to(device)), kernel, x)
    with kernel_in_force("auto"):
        exact_model = create_model("scn1", pretrained="cifar10", tol=_EXACT_TOL).double()
        expected = _scores_and_gradients(exact_model, x.double(), labels)
    errors = [largest_error(own.cpu().double()[None], exact[None]) for own, exact in zip(first, expected, strict=True)]
    bit_equal = all(are_bit_equal(one, other) for one, other in zip(first, second, strict=True))
    return judge(Check("the trained SCN-1", kernel, bit_equal=bit_equal), max(errors) / _NETWORK_TOL)


def check_reads(kernel: str, device: torch.device) -> Check:
    """That nothing in a step of a network waits for the device; plain torch may, to know when to stop."""
    if kernel == "triton" and device.type == "cuda":
        x, labels = (tensor.to(device) for tensor in ImageBatch(batch=8, size=16).make())
        model = create_model("scn2").to(device)
        with kernel_in_force(kernel):
            _scores_and_gradients(model, x, labels)  # what is done once, such as compiling, may wait
            torch.cuda.set_sync_debug_mode("error")
            try:
                _scores_and_gradients(model, x, labels)
            finally:
                torch.cuda.set_sync_debug_mode("default")
    return Check(_READS_NOTHING, kernel)


def _scores_and_gradients(model: nn.Module, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    scores = model(x)
    gradients = torch.autograd.grad(F.cross_entropy(scores, labels), list(model.parameters()))
    return scores.detach().flatten(), torch.cat([gradient.flatten() for gradient in gradients])
