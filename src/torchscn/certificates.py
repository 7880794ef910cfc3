"""Certificates of a network: how well each layer's codes are solved, and what they look like."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchscn.layers import CodingLayer
from torchscn.problem import Solution

__all__ = ["LayerCertificate", "certify", "evaluating", "spread_sample"]


@dataclass(frozen=True)
class LayerCertificate:
    """What one sparse coding layer did on a batch."""

    name: str
    iterations: float  # mean over positions
    residual: float  # largest KKT residual, relative to the largest code
    converged: float | None  # share of positions that met the tolerance; None for a fixed number of steps
    active: float  # share of codes that are not zero
    dead: float  # share of atoms that no position uses
    lam1: float  # mean over atoms

    @property
    def is_sound(self) -> bool:
        """Whether (nearly) every position met the tolerance, if there was one."""
        return self.converged is None or self.converged >= 0.99


def spread_sample(images: Tensor, n_images: int = 64) -> Tensor:
    """A few images spread over the whole set, which may be sorted by class; for :func:`certify`.

    Example:
        >>> spread_sample(torch.arange(7), 3)
        tensor([0, 3, 6])
    """
    return images[torch.linspace(0, len(images) - 1, min(n_images, len(images))).long()]


def certify(model: nn.Module, x: Tensor) -> list[LayerCertificate]:
    """Run ``model`` on ``x`` and certify the codes of every sparse coding layer; the model is not changed.

    Args:
        model: any module with sparse coding layers inside.
        x: a batch of inputs to the model; a few dozen images are enough.

    Example:
        >>> from torchscn import create_model
        >>> [first, *_] = certify(create_model("scn1"), torch.randn(2, 3, 16, 16))
        >>> first.name, first.converged
        ('blocks.0.1', 1.0)
    """
    if x.numel() == 0:
        raise ValueError(f"a certificate needs at least one signal; got x of shape {tuple(x.shape)}.")
    found: list[LayerCertificate] = []
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, CodingLayer):

            def look(
                layer: CodingLayer, inputs: tuple[Tensor, ...], named: dict[str, Tensor], name: str = name
            ) -> None:
                found.append(_summarize(name, layer, layer.solve(inputs[0] if inputs else named["x"])))

            handles.append(module.register_forward_pre_hook(look, with_kwargs=True))
    try:
        with torch.no_grad(), evaluating(model):
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return found


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and afterwards every module in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def _summarize(name: str, layer: CodingLayer, solution: Solution) -> LayerCertificate:
    active = (solution.codes != 0).movedim(layer.coding_model().atom_dim, -1).flatten(0, -2)
    largest = solution.codes.abs().amax().clamp(min=torch.finfo(solution.codes.dtype).tiny)
    # The exact solver ignores the tolerance.
    fixed_steps = layer.options.has_fixed_steps and layer.solver != "active_set"
    return LayerCertificate(
        name=name,
        iterations=solution.mean_iter,
        residual=float(solution.residual.max() / largest),
        converged=None if fixed_steps else float(solution.converged.double().mean()),
        active=float(active.double().mean()),
        dead=float((~active.any(0)).double().mean()),
        lam1=float(layer.lam1.detach().clamp(min=0).mean()),
    )
