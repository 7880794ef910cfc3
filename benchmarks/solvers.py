"""Time the solvers against others on one problem, side by side.

Run it with nothing else on the machine: all competitors run in turn, several rounds in one process, and each one's
best time counts. The same objective judges them all: the error of each is the relative distance of its codes from the
exact ones.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import spams
import torch
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import sparse_encode
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

import torchscn
from torchscn.kernels import active_kernel

N_SIGNALS, N_FEATURES, N_ATOMS, LAM2 = 20_000, 144, 64, 1e-3


def make_problem() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(N_SIGNALS, N_FEATURES), torch.randn(N_ATOMS, N_FEATURES) / N_FEATURES**0.5


def fista_50(x: Tensor, dictionary: Tensor) -> Tensor:
    """The paper's 50 steps, written for speed: one fused product and in-place arithmetic a step."""
    gram = dictionary @ dictionary.T + LAM2 * torch.eye(len(dictionary))
    step = 1 / torch.linalg.eigvalsh(gram)[-1]
    contraction = torch.eye(len(gram)) - step * gram
    target = (x @ dictionary.T).mul_(step)
    codes, following, ahead = (torch.zeros_like(target) for _ in range(3))
    t = 1.0
    for _ in range(50):
        torch.addmm(target, ahead, contraction, out=following).relu_()
        t_next = (1 + (1 + 4 * t * t) ** 0.5) / 2
        torch.lerp(codes, following, 1 + (t - 1) / t_next, out=ahead)
        codes, following, t = following, codes, t_next
    return codes


def spams_lasso(signals: Any, atoms: Any, n_threads: int) -> Tensor:
    codes = spams.lasso(signals, D=atoms, lambda1=0.0, lambda2=LAM2, mode=2, pos=True, numThreads=n_threads)
    return torch.from_numpy(codes.toarray().T)


def scikit_learn(signals: Any, atoms: Any, max_iter: int) -> Tensor:
    """``sparse_encode`` has no l2 penalty: it enters as extra features."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        codes = sparse_encode(signals, atoms, algorithm="lasso_cd", alpha=1e-12, positive=True, max_iter=max_iter)
    return torch.from_numpy(codes)


def competitors(x: Tensor, D: Tensor, n_threads: int) -> dict[str, Callable[[], Tensor]]:
    spams_x, spams_d = np.asfortranarray(x.T.numpy()), np.asfortranarray(D.T.numpy())
    augmented_x = np.hstack([x.numpy(), np.zeros((len(x), N_ATOMS), dtype=np.float32)])
    augmented_d = np.hstack([D.numpy(), LAM2**0.5 * np.eye(N_ATOMS, dtype=np.float32)])

    def coordinate(tol: float) -> Callable[[], Tensor]:
        return lambda: torchscn.sparse_code(x, D, 0.0, LAM2, solver="coordinate", tol=tol)

    return {
        "coordinate, tol 1e-2": coordinate(1e-2),
        "coordinate, tol 2e-3": coordinate(2e-3),
        "coordinate, tol 1e-6": coordinate(1e-6),
        "FISTA, 50 steps": lambda: fista_50(x, D),
        "SPAMS lasso": lambda: spams_lasso(spams_x, spams_d, n_threads),
        # Its duality gap never closes with a vanishing penalty, so it runs to max_iter: the default, and 30 passes,
        # which are enough for an error of 1e-6.
        "scikit-learn lasso_cd": lambda: scikit_learn(augmented_x, augmented_d, 1000),
        "scikit-learn, 30 passes": lambda: scikit_learn(augmented_x, augmented_d, 30),
    }


def best_times(runs: dict[str, Callable[[], Tensor]], rounds: int, slow_rounds: int) -> dict[str, float]:
    """Best time of each, interleaved; those over a second take part in the first rounds only."""
    best: dict[str, float] = {}
    for i in range(rounds):
        for name, run in runs.items():
            if i >= slow_rounds and best[name] > 1.0:
                continue
            start = time.perf_counter()
            run()
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the solvers against others on one problem, side by side.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    x, D = make_problem()
    exact = torchscn.sparse_code(x.double(), D.double(), 0.0, LAM2, solver="active_set")
    runs = competitors(x, D, options.threads)
    errors = {name: ((run() - exact).norm() / exact.norm()).item() for name, run in runs.items()}
    best = best_times(runs, options.rounds, slow_rounds=2)

    columns = [name for name in runs if name.startswith("coordinate")]
    table = Table(
        title=f"{N_SIGNALS:,} signals, {N_FEATURES} features, {N_ATOMS} atoms, lam1 0, lam2 {LAM2:g}, float32, "
        f"{options.threads} threads, kernel {active_kernel()}, torch {torch.__version__}"
    )
    for heading in ("solver", "relative error", "ms", *(f"slower than {name.split(', ')[1]}" for name in columns)):
        table.add_column(heading, justify="left" if heading == "solver" else "right")
    for name in runs:
        ratios = [f"{best[name] / best[column]:.1f}x" for column in columns]
        table.add_row(name, f"{errors[name]:.1e}", f"{1e3 * best[name]:.1f}", *ratios)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
