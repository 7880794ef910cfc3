"""The measurements: each returns rows of plain numbers, to be written as JSON and drawn from it."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchscn.bench.competitors import jax_nnls, moreau_qp, qpth_qp, scikit_learn, scipy_nnls, spams_lasso
from torchscn.bench.competitors.authors import replace_layers
from torchscn.bench.competitors.autograd_fista import fifty_steps
from torchscn.bench.competitors.fused_fista import fused_fista
from torchscn.bench.competitors.unrolled import two_steps
from torchscn.bench.problems import DENSE, MANY_MATRICES, UNMIXING, ImageBatch, ManyMatrices, layer_sizes
from torchscn.bench.steps import inference_step, training_step
from torchscn.bench.timing import best_times, peak_memory
from torchscn.functional import nonneg_qp, sparse_code
from torchscn.layers import SparseCoding2d
from torchscn.least_squares import nnls
from torchscn.models import create_model
from torchscn.problem import gram_matrix

__all__ = ["SUITES"]

Rows = list[dict[str, Any]]


def solvers(rounds: int) -> Rows:
    """One dense problem: our solver against FISTA, SPAMS and scikit-learn, each with its error."""
    x, D = DENSE.make()
    exact = sparse_code(x.double(), D.double(), 0.0, DENSE.lam2, solver="active_set")
    runs = _dense_runs(x, D, DENSE.lam2)
    errors = {name: float((run() - exact).norm() / exact.norm()) for name, run in runs.items()}
    return _ratio_rows(best_times(runs, rounds), {name: {"error": errors[name]} for name in runs})


def _dense_runs(x: Tensor, D: Tensor, lam2: float) -> dict[str, Callable[[], Tensor]]:
    """Every way to code ``x`` that is installed here, ours first."""

    def coordinate(tol: float) -> Callable[[], Tensor]:
        return lambda: sparse_code(x, D, 0.0, lam2, solver="coordinate", tol=tol)

    runs: dict[str, Callable[[], Tensor]] = {
        "coordinate, tol 2e-3": coordinate(2e-3),
        "coordinate, tol 1e-2": coordinate(1e-2),
        "coordinate, tol 1e-6": coordinate(1e-6),
        "FISTA, 50 steps": lambda: fused_fista(x @ D.T, gram_matrix(D, lam2)),
    }
    if spams_lasso.PACKAGE.is_installed():
        spams_input, n_threads = spams_lasso.prepare(x, D), torch.get_num_threads()
        runs["SPAMS lasso"] = lambda: spams_lasso.solve(*spams_input, lam2, n_threads)
    if scikit_learn.PACKAGE.is_installed():
        sklearn_input = scikit_learn.prepare(x, D, lam2)
        runs["scikit-learn lasso_cd"] = lambda: scikit_learn.solve(*sklearn_input, 1000)
        runs["scikit-learn, 30 passes"] = lambda: scikit_learn.solve(*sklearn_input, 30)
    return runs


def non_negative(rounds: int) -> Rows:
    """Non-negative least squares in float64: pixels over a few similar spectra, and a matrix for every problem."""
    rows = _unmixing_rows(rounds)
    for problem in MANY_MATRICES:
        rows += _many_matrices_rows(problem, rounds)
    return rows


def _unmixing_rows(rounds: int) -> Rows:
    spectra, pixels = UNMIXING.make()
    signals, atoms = pixels.mT.contiguous(), spectra.mT.contiguous()
    runs: dict[str, Callable[[], Any]] = {
        "sparse_code, tol 1e-8": lambda: sparse_code(signals, atoms, tol=1e-8),
        "nnls": lambda: nnls(spectra, pixels)[0].mT,
    }
    if spams_lasso.PACKAGE.is_installed():
        spams_input, n_threads = spams_lasso.prepare(signals, atoms), torch.get_num_threads()
        runs["SPAMS lasso"] = lambda: spams_lasso.solve(*spams_input, 0.0, n_threads)
    if scipy_nnls.PACKAGE.is_installed():
        runs["scipy nnls in a loop"] = lambda: scipy_nnls.solve(spectra.numpy(), signals.numpy())
    rows = _ratio_rows(best_times(runs, rounds), _largest_errors(runs, nnls(spectra, pixels)[0].mT))
    return [{"problem": str(UNMIXING)} | row for row in rows]


def _many_matrices_rows(problem: ManyMatrices, rounds: int) -> Rows:
    x, atoms = problem.make()
    rhs, gram = (atoms @ x[..., None]).squeeze(-1), atoms @ atoms.mT
    runs: dict[str, Callable[[], Any]] = {
        "nonneg_qp": lambda: nonneg_qp(rhs, gram),
        "nnls": lambda: nnls(atoms.mT, x)[0],
    }
    with_gradients = {"nonneg_qp": _with_gradients(nonneg_qp, rhs, gram)}
    if scipy_nnls.PACKAGE.is_installed():
        runs["scipy nnls in a loop"] = lambda: scipy_nnls.solve(atoms.mT.numpy(), x.numpy())
    if qpth_qp.PACKAGE.is_installed():
        runs["qpth"] = lambda: qpth_qp.solve(rhs, gram)
        with_gradients["qpth"] = _with_gradients(qpth_qp.solve, rhs, gram)
    if moreau_qp.PACKAGE.is_installed():
        by_moreau = moreau_qp.prepare(*rhs.shape)
        runs["Moreau"] = lambda: by_moreau(rhs, gram)
        with_gradients["Moreau"] = _with_gradients(by_moreau, rhs, gram)
    if jax_nnls.PACKAGE.is_installed():
        runs["jaxnnls"], with_gradients["jaxnnls"] = jax_nnls.prepare(rhs, gram)
    rows = _ratio_rows(best_times(runs, rounds), _largest_errors(runs, nnls(atoms.mT, x)[0]))
    rows += [{"gradients": "yes"} | row for row in _ratio_rows(best_times(with_gradients, rounds), {})]
    return [{"problem": str(problem)} | row for row in rows]


def _largest_errors(runs: dict[str, Callable[[], Any]], exact: Tensor) -> dict[str, dict[str, float]]:
    return {name: {"error": float(abs(np.asarray(run()) - exact.numpy()).max())} for name, run in runs.items()}


def _with_gradients(solve: Callable[[Tensor, Tensor], Tensor], rhs: Tensor, gram: Tensor) -> Callable[[], None]:
    leaves = rhs.clone().requires_grad_(), gram.clone().requires_grad_()

    def run() -> None:
        torch.autograd.grad(solve(*leaves).sum(), leaves)

    return run


def layers(rounds: int) -> Rows:
    """Forward and backward of every layer of SCN-1, 2 and 4 against a convolution with ReLU, batch 128."""
    rows: Rows = []
    for width in (1, 2, 4):
        for size in layer_sizes(width):
            x = torch.randn(128, size.in_channels, size.size, size.size).contiguous(memory_format=torch.channels_last)
            ours = SparseCoding2d(size.in_channels, size.n_atoms)
            twin = nn.Sequential(nn.Conv2d(size.in_channels, size.n_atoms, 3, padding=1), nn.ReLU())
            two = two_steps(copy.deepcopy(ours))
            runs = {"convolution": twin, "sparse coding": ours, "2 unrolled steps": two}
            grad = torch.randn_like(ours(x).detach())
            times = best_times({name: _layer_step(layer, x, grad) for name, layer in runs.items()}, rounds)
            exact = _codes_at(ours, x, tol=1e-6)
            errors = {name: {"error": float((layer(x) - exact).norm() / exact.norm())} for name, layer in runs.items()}
            errors["convolution"] = {}
            rows += [{"network": f"scn{width}", "layer": str(size)} | row for row in _ratio_rows(times, errors)]
    return rows


def networks(rounds: int) -> Rows:
    """Whole training and inference steps, batch 128: SCN-1 and SCN-4 against the twin, the authors' way and others."""
    x, labels = ImageBatch().make()
    rows: Rows = []
    for width in (1, 4):
        models = {
            f"cnn{width}": create_model(f"cnn{width}"),
            f"scn{width}": create_model(f"scn{width}"),
            "2 unrolled steps": replace_layers(create_model(f"scn{width}"), two_steps),
            "authors' algorithm": replace_layers(create_model(f"scn{width}")),
        }
        if width == 1:
            models["autograd through 50 steps"] = replace_layers(create_model(f"scn{width}"), fifty_steps)
        for mode, step in (("training", training_step), ("inference", inference_step)):
            times = best_times({name: step(model, x, labels) for name, model in models.items()}, rounds)
            speed = {name: {"images_per_second": len(x) / times[name]} for name in times}
            rows += [{"network": f"scn{width}", "mode": mode} | row for row in _ratio_rows(times, speed)]
    return rows


def scaling(rounds: int) -> Rows:
    """Time of one layer's solve against the number of atoms, of signals and of threads."""
    rows: Rows = []
    threads = torch.get_num_threads()
    for n_atoms in (16, 32, 64, 128, 256, 512, 1024):
        rhs, gram = _normal_form(4096, n_atoms)
        times = best_times({"one sweep": _sweeps(rhs, gram, 1), "five sweeps": _sweeps(rhs, gram, 5)}, rounds)
        rows.append({"over": "atoms", "n": n_atoms, "seconds": (times["five sweeps"] - times["one sweep"]) / 4})
    for n_signals in (1024, 4096, 16_384, 65_536, 262_144):
        rhs, gram = _normal_form(n_signals, 64)
        rows.append({"over": "signals", "n": n_signals, "seconds": best_times({"": _sweeps(rhs, gram, 5)}, rounds)[""]})
    rhs, gram = _normal_form(65_536, 64)
    for n_threads in range(1, threads + 1):
        torch.set_num_threads(n_threads)
        rows.append({"over": "threads", "n": n_threads, "seconds": best_times({"": _sweeps(rhs, gram, 5)}, rounds)[""]})
    return rows


def memory(rounds: int) -> Rows:
    """Peak memory of a training step, each in a fresh process, less that of the same process without the step."""
    rows: Rows = []
    template = (
        "import torch, torchscn\n"
        f"torch.set_num_threads({torch.get_num_threads()})\n"
        "model = torchscn.create_model({name!r})\n"
        "x, labels = torch.randn(128, 3, 32, 32), torch.randint(10, (128,))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"
        "for _ in range({steps}):\n"
        "    optimizer.zero_grad(); torch.nn.functional.cross_entropy(model(x), labels).backward(); optimizer.step()\n"
    )
    for width in (1, 4):
        used = {}
        for name in (f"cnn{width}", f"scn{width}"):
            idle, busy = (peak_memory(template.format(name=name, steps=steps)) for steps in (0, 3))
            used[name] = busy - idle
            rows.append({"name": name, "mebibytes": used[name], "ratio": used[name] / used[f"cnn{width}"]})
    return rows


def _ratio_rows(times: dict[str, float], extra: dict[str, dict[str, Any]]) -> Rows:
    """Each time with its ratio to the first."""
    reference = next(iter(times.values()))
    return [
        {"name": name, "seconds": seconds, "ratio": seconds / reference} | extra.get(name, {})
        for name, seconds in times.items()
    ]


def _layer_step(layer: nn.Module, x: Tensor, grad: Tensor) -> Callable[[], None]:
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()

    def run() -> None:
        leaf.grad = None
        layer(leaf).backward(grad)

    return run


def _codes_at(layer: SparseCoding2d, x: Tensor, tol: float) -> Tensor:
    """The layer's codes at another tolerance."""
    before, layer.tol = layer.tol, tol
    try:
        return layer.solve(x).codes
    finally:
        layer.tol = before


def _normal_form(n_signals: int, n_atoms: int) -> tuple[Tensor, Tensor]:
    D = torch.randn(n_atoms, 2 * n_atoms) / (2 * n_atoms) ** 0.5
    return torch.randn(n_signals, n_atoms), gram_matrix(D, 1e-3)


def _sweeps(rhs: Tensor, gram: Tensor, n: int) -> Callable[[], None]:
    def run() -> None:
        nonneg_qp(rhs, gram, solver="coordinate", tol=0, max_iter=n)

    return run


SUITES: dict[str, Callable[[int], Rows]] = {
    "solvers": solvers,
    "nnls": non_negative,
    "layers": layers,
    "networks": networks,
    "scaling": scaling,
    "memory": memory,
}
"""The suites by name; each takes the number of rounds."""
