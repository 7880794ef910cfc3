"""Study of the layers' tolerance: error of the codes, error of the gradient, time, and effect on training.

    python benchmarks/tolerance.py RUN --data-dir DATA --output benchmarks/results/tolerance.json

RUN is the folder of a trained network on CIFAR-10. The gradient is compared with that at a tolerance of 1e-6 on the
same batch, layer by layer, through the whole network; codes are compared with the exact ones on the same input. Short
training runs from scratch at several tolerances show what is left of the difference at the end.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from torchscn import SparseCoding2d, create_model, data
from torchscn.training import load_recipe, load_trained, train

TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
EXACT = 1e-6


def set_tol(model: nn.Module, tol: float) -> None:
    for module in model.modules():
        if isinstance(module, SparseCoding2d):
            module.tol = tol


def gradients(model: nn.Module, x: Tensor, labels: Tensor, tol: float) -> list[Tensor]:
    """Gradient of every dictionary."""
    set_tol(model, tol)
    model.zero_grad()
    F.cross_entropy(model(x), labels).backward()
    return [m.dictionary.grad.clone() for m in model.modules() if isinstance(m, SparseCoding2d)]


def code_errors(model: nn.Module, x: Tensor, tol: float) -> list[float]:
    """Relative error of every layer's codes, on the input it gets in the exact network."""
    errors = []

    def look(layer: SparseCoding2d, inputs: tuple[Tensor]) -> None:
        exact = layer.solve(inputs[0]).codes
        layer.tol = tol
        errors.append(float((layer.solve(inputs[0]).codes - exact).norm() / exact.norm()))
        layer.tol = EXACT

    set_tol(model, EXACT)
    handles = [m.register_forward_pre_hook(look) for m in model.modules() if isinstance(m, SparseCoding2d)]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return errors


def step_seconds(model: nn.Module, x: Tensor, labels: Tensor, tol: float) -> float:
    times = []
    for _ in range(4):
        start = time.perf_counter()
        gradients(model, x, labels, tol)
        times.append(time.perf_counter() - start)
    return min(times)


def study(name: str, model: nn.Module, x: Tensor, labels: Tensor) -> list[dict[str, Any]]:
    model.train()
    exact = gradients(model, x, labels, EXACT)
    rows = []
    for tol in TOLERANCES:
        cosines = [
            float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0))
            for a, b in zip(gradients(model, x, labels, tol), exact, strict=True)
        ]
        errors = code_errors(model, x, tol)
        seconds = step_seconds(model, x, labels, tol)
        rows.append({"network": name, "tol": tol, "code_errors": errors, "cosines": cosines, "seconds": seconds})
        print(
            f"{name}: tol {tol:g}  worst code error {max(errors):.1e}  worst cosine {min(cosines):.4f}  {seconds:.3f} s"
        )
    return rows


def short_trainings(data_dir: Path) -> list[dict[str, Any]]:
    """The same short training run at several tolerances and two seeds."""
    rows = []
    for tol in (1e-1, 1e-2, 1e-3):
        for seed in (0, 1):
            settings = {"model": "scn1", "epochs": 3, "limit": 10_000, "tol": tol, "seed": seed}
            with tempfile.TemporaryDirectory() as folder:
                config = load_recipe("cifar10-cnn1").override(settings)
                result = train(config, Path(folder) / "run", data_dir=data_dir, quiet=True)
            last = result.metrics[-1]
            rows.append({"tol": tol, "seed": seed, "test_error": last["test_error"], "seconds": last["seconds"]})
            print(f"trained at tol {tol:g}, seed {seed}: test error {last['test_error']:.2f}%")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a trained network")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    trained = load_trained(options.run)
    test_set = data.load(trained.config.data, "test", options.data_dir)
    x, labels = trained.model.preprocess(test_set.images[:128]), test_set.labels[:128]
    torch.manual_seed(0)
    rows = study(f"{trained.config.model}, trained", trained.model, x, labels)
    rows += study("scn1, untrained", create_model("scn1"), x, labels)
    rows += study("scn4, untrained", create_model("scn4"), x, labels)
    trainings = short_trainings(options.data_dir)
    options.output.write_text(json.dumps({"gradients": rows, "trainings": trainings}, indent=1) + "\n")


if __name__ == "__main__":
    main()
