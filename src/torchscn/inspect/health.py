"""Whether the layers of a network are in order, and what to do where they are not."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from torchscn.certificates import LayerCertificate
from torchscn.inspect.stages import Stage, dissect
from torchscn.inspect.surveys import LayerUse, Survey
from torchscn.layers import SparseCoding2d
from torchscn.network import Network
from torchscn.problem import gram_matrix

__all__ = ["Concern", "LayerHealth", "duplicates", "examine"]

ALIKE = 0.98  # cosine above which two atoms count as duplicates
ILL_CONDITIONED = 1e5
DENSE = 0.8  # share of active codes above which a layer is hardly sparse
EMPTY = 0.01  # share of active codes below which a layer says next to nothing


@dataclass(frozen=True)
class Concern:
    """Something about a layer that a person should know, and what to do about it."""

    layer: int
    finding: str
    advice: str


@dataclass(frozen=True)
class LayerHealth:
    """The state of a layer; None where it is not known (no images) or has no meaning (a convolution)."""

    stage: Stage
    dead: list[int] | None  # atoms that no image uses
    duplicates: list[tuple[int, int]]  # pairs of atoms that point the same way
    smallest_norm: float  # of an atom
    largest_norm: float
    lam1: float | None  # mean over atoms
    condition: float | None  # of the Gram matrix, lam2 included
    active: float | None  # share of codes that are not zero
    converged: float | None  # share of positions that met the tolerance

    def concerns(self) -> list[Concern]:
        """What is not as it should be."""
        return [Concern(self.stage.number, finding, advice) for finding, advice in self._concerns()]

    def _concerns(self) -> Iterator[tuple[str, str]]:
        layer, width = self.stage.layer, self.stage.width
        is_sparse = isinstance(layer, SparseCoding2d)
        atoms = "atoms" if is_sparse else "channels"
        if not math.isfinite(self.largest_norm):
            yield (
                "its weights are not finite.",
                "Training has diverged. Take an earlier checkpoint, a lower learning rate or a few epochs of warmup.",
            )
        if self.dead:
            penalty = "lam1 or learning rate" if is_sparse else "learning rate"
            yield (
                f"dead {atoms}: {len(self.dead)} of {width} are used by none of the images that were looked at.",
                f"They cost time and parameters. Train with a smaller {penalty} at the start, or a narrower layer.",
            )
        if self.duplicates:
            yield (
                f"duplicate {atoms}: pairs that point the same way (cosine above {ALIKE}): {len(self.duplicates)}.",
                "Codes may be shared between them at will. A narrower layer, more weight decay or a larger lam2 helps.",
            )
        if self.lam1 == 0 and is_sparse and layer.lam1.requires_grad and layer.constraint == "non_negative":
            yield (
                "lam1 was learned down to 0: nothing but the sign keeps the codes sparse.",
                "Harmless if the error is good. For sparser codes fix it with learn_lam1=False, or exempt it from "
                "weight decay.",
            )
        if self.condition is not None and self.condition > ILL_CONDITIONED:
            yield (
                f"the Gram matrix is badly conditioned ({self.condition:.0e}).",
                "Codes hang on the last digits, and sweeps take long. Raise lam2.",
            )
        if self.active is not None and self.active > DENSE:
            yield (
                f"{100 * self.active:.0f} % of the codes are active: this is hardly sparse.",
                "A larger initial lam1, or more atoms than features.",
            )
        if self.active is not None and self.active < EMPTY:
            yield (
                f"only {100 * self.active:.1g} % of the codes are active: little gets through.",
                "A smaller initial lam1; look at the learning rate, too.",
            )
        if self.converged is not None and self.converged < 0.99:
            yield (
                f"only {100 * self.converged:.0f} % of the positions met the tolerance.",
                "Allow more iterations (max_iter), or raise lam2.",
            )


def examine(
    network: Network, survey: Survey | None = None, certificates: list[LayerCertificate] | None = None
) -> list[LayerHealth]:
    """Examine every layer.

    Args:
        network: the network.
        survey: what its layers did with images; without it dead atoms and activity are not known.
        certificates: from :func:`torchscn.certify`; they tell whether the codes converge.

    Example:
        >>> from torchscn import create_model
        >>> [layer.duplicates for layer in examine(create_model("scn1"))][:3]
        [[], [], []]
    """
    converged = {c.name: c.converged for c in certificates or []}
    stages = dissect(network).stages
    uses = [None] * len(stages) if survey is None else survey.layers
    return [_examine(stage, use, converged.get(stage.name)) for stage, use in zip(stages, uses, strict=True)]


def duplicates(atoms: Tensor, *, signed: bool = False) -> list[tuple[int, int]]:
    """Pairs of atoms that point the same way.

    Args:
        atoms: the dictionary, atoms first.
        signed: codes may be negative, so that opposite atoms are alike.

    Example:
        >>> duplicates(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1]]))
        [(0, 2)]
    """
    directions = F.normalize(atoms.flatten(1))
    cosines = (directions @ directions.T).triu(1)
    alike = (cosines.abs() if signed else cosines) > ALIKE
    return [(one, other) for one, other in alike.nonzero().tolist()]


def _examine(stage: Stage, use: LayerUse | None, converged: float | None) -> LayerHealth:
    layer, atoms = stage.layer, stage.atoms()
    norms = atoms.flatten(1).norm(dim=1)
    sparse = isinstance(layer, SparseCoding2d)
    signed = isinstance(layer, SparseCoding2d) and layer.constraint == "signed"
    return LayerHealth(
        stage=stage,
        dead=None if use is None else use.is_dead().nonzero().flatten().tolist(),
        duplicates=duplicates(atoms, signed=signed),
        smallest_norm=float(norms.min()),
        largest_norm=float(norms.max()),
        lam1=float(layer.lam1.detach().clamp(min=0).mean()) if isinstance(layer, SparseCoding2d) else None,
        condition=_condition(atoms, layer.lam2) if isinstance(layer, SparseCoding2d) else None,
        active=use.active if use is not None and sparse else None,
        converged=converged,
    )


def _condition(atoms: Tensor, lam2: float | Tensor) -> float:
    """The condition number of the Gram matrix; infinite if it is singular."""
    gram = gram_matrix(atoms.double(), lam2)
    if not bool(gram.isfinite().all()):
        return float("inf")
    values = torch.linalg.eigvalsh(gram)
    return float(values[-1] / values[0]) if float(values[0]) > 0 else float("inf")
