"""Layers at their defaults, well- and ill-conditioned: codes and gradients against exact ones in float64."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.fuzz.outcome import Outcome
from torchscn import SparseCoding2d, create_model
from torchscn.layers import CodingLayer

__all__ = ["LayerResult", "outcomes", "run", "run_networks"]

# Channels of a 3 x 3 patch, and atoms.
SHAPES = ((1, 16), (1, 64), (3, 16), (3, 64), (3, 128), (8, 32), (8, 256), (16, 64), (64, 256))
TOLERANCES = (1e-2, 1e-3)  # the default first
KINDS = ("random", "trained", "correlated")


@dataclass(frozen=True)
class LayerResult:
    """How far a layer is from exact at one tolerance."""

    name: str
    tol: float
    n_positions: int
    converged: float  # share of the positions
    within: float  # share of the positions whose codes are within ten times the tolerance
    worst: float  # largest relative error of a position's codes
    cosine: float  # between the gradient of the dictionary and the exact one
    cosine_in_float64: float  # the same of the layer in float64, looked at only where the other one is too small

    @property
    def is_right(self) -> bool:
        return min(self.converged, self.within) >= 0.999 and self.cosine_in_float64 >= _least_cosine(self.tol)

    @property
    def is_limited_by_rounding(self) -> bool:
        return self.is_right and self.cosine < _least_cosine(self.tol)


def _least_cosine(tol: float) -> float:
    return 0.99 if tol > 1e-3 else 0.999


def outcomes(report: Callable[[str], None]) -> list[Outcome]:
    """All layers and networks, one outcome for each kind."""
    found = []
    for kind in KINDS:
        found.append(_outcome(f"layers, {kind} atoms", run((kind,), 16, report)))
    found.append(_outcome("networks, text preset, K = 2 and 4", run_networks(16, report)))
    return found


def _outcome(title: str, results: list[LayerResult]) -> Outcome:
    loose = [result for result in results if result.tol == TOLERANCES[0]]
    tight = [result for result in results if result.tol == TOLERANCES[1]]
    note = (
        f"worst error of a position {max(r.worst / r.tol for r in results):.1f} tol; cosine of the gradient at least "
        f"{min(r.cosine for r in loose):.4f} at the default, {min(r.cosine for r in tight):.4f} at 1e-3; "
        f"{min(r.converged for r in results):.2%} of positions converged"
    )
    n_limited = sum(result.is_limited_by_rounding for result in results)
    note += f"; {n_limited} held back by float32" if n_limited else ""
    wrong = tuple(str(result) for result in results if not result.is_right)
    return Outcome(title, sum(result.n_positions for result in results), len(wrong), note, wrong)


def run(kinds: tuple[str, ...], size: int, report: Callable[[str], None]) -> list[LayerResult]:
    """Every shape of every kind, on four images of ``size`` x ``size``."""
    results = []
    for kind in kinds:
        for channels, n_atoms in SHAPES:
            torch.manual_seed(channels * n_atoms)
            x = _images(channels, size)
            layer = _make(kind, channels, n_atoms, x)
            name = f"{9 * channels} x {n_atoms}, {kind}"
            report(name)
            results += [_examine(name, layer, x, tol) for tol in TOLERANCES]
    return results


def run_networks(size: int, report: Callable[[str], None]) -> list[LayerResult]:
    """Every layer of the networks as the paper's text has them, wide layers first, on its own input."""
    results = []
    for width in (2, 4):
        torch.manual_seed(width)
        network = create_model(f"scn{width}", preset="text").eval()
        for number, (layer, x) in enumerate(_inputs(network, torch.randn(4, 3, size, size)), 1):
            name = f"text preset, K = {width}, layer {number}"
            report(name)
            results += [_examine(name, layer, x, tol) for tol in TOLERANCES]
    return results


def _inputs(network: torch.nn.Module, images: Tensor) -> Iterator[tuple[CodingLayer, Tensor]]:
    seen: list[tuple[CodingLayer, Tensor]] = []
    layers = [module for module in network.modules() if isinstance(module, CodingLayer)]
    hooks = [
        layer.register_forward_pre_hook(lambda layer, inputs: seen.append((layer, inputs[0].detach())))
        for layer in layers
    ]
    with torch.no_grad():
        network(images)
    for hook in hooks:
        hook.remove()
    yield from seen


def _images(channels: int, size: int) -> Tensor:
    """Smooth random images, with one half of the last one black."""
    images = torch.nn.functional.interpolate(
        torch.randn(4, channels, size // 2, size // 2), (size, size), mode="bicubic"
    )
    images = images + 0.2 * torch.randn_like(images)
    images[-1, :, :, : size // 2] = 0
    return images


def _make(kind: str, channels: int, n_atoms: int, x: Tensor) -> SparseCoding2d:
    layer = SparseCoding2d(channels, n_atoms)
    if kind == "correlated":
        with torch.no_grad():
            layer.dictionary.add_(0.3 * torch.randn_like(layer.dictionary[:1]))
    if kind == "trained":
        _learn(layer, x)
    return layer


def _learn(layer: SparseCoding2d, x: Tensor) -> None:
    """A few steps towards atoms that rebuild the patches."""
    patches = torch.nn.functional.unfold(x, 3, padding=1).movedim(1, -1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        codes = layer(x).flatten(2).movedim(1, -1)
        (patches - codes @ layer.dictionary.flatten(1)).square().mean().backward()
        optimizer.step()


def _examine(name: str, layer: CodingLayer, x: Tensor, tol: float) -> LayerResult:
    layer = copy.deepcopy(layer)
    layer.tol = tol
    exact = copy.deepcopy(layer).double()
    exact.solver = "active_set"
    reference = exact.solve(x.double())
    if not bool(reference.residual.max() <= 1e-9 * reference.codes.abs().max()):
        raise RuntimeError(f"{name}: the exact codes are not exact")
    solution = layer.solve(x)
    codes, wanted = solution.codes.double(), reference.codes
    size = wanted.norm(dim=1)
    error = torch.where(size > 0, (codes - wanted).norm(dim=1) / size, codes.norm(dim=1)).flatten()
    incoming = torch.randn_like(wanted)
    right = _gradient(exact, x.double(), incoming)
    cosine = in_float64 = _cosine(_gradient(layer, x, incoming.float()), right)
    if cosine < _least_cosine(tol):
        in_float64 = _cosine(_gradient(layer.double(), x.double(), incoming), right)
    return LayerResult(
        name,
        tol,
        error.numel(),
        float(solution.converged.double().mean()),
        float((error <= 10 * tol).double().mean()),
        float(error.max()),
        cosine,
        in_float64,
    )


def _cosine(found: Tensor, right: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(found.double().flatten(), right.flatten(), dim=0))


def _gradient(layer: CodingLayer, x: Tensor, incoming: Tensor) -> Tensor:
    layer.zero_grad()
    layer(x).backward(incoming)
    assert layer.dictionary.grad is not None
    return layer.dictionary.grad
